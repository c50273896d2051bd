"""Signals at declared states: hold a process there, signal one, see what becomes of the run.

The pairs of component and state come from the compiled plan.  A *case* holds one
process at a state by an injected delay and signals that process, the frontend or the
whole process group.  What is observed goes to a JSON report, with the times.

A run *hangs* while nothing of it moves: from the signal, or from the last state that
was published after it, to the end of its last process.  Of a signal that the engine
puts off (its core does, while it is under construction) only what comes after that
counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from real_engine import ROOT, tiny

from cfac.compiler import api
from cfac.runtime.plan import Plan, split_label
from cfac.runtime.processes import processes_of_run
from cfac.runtime.table import label

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
GROUP = "group"
#: Seconds that a process is held: so long that nothing ends because the hold does, or,
#: where the engine puts the signal off, so short that the start goes on after it.
LONG_HOLD, SHORT_HOLD = 300, 6
#: The requirement: seconds without progress from a signal to the end of everything.
LIMIT = 10


@dataclass(frozen=True)
class Case:
    """Hold ``component`` at ``state``, then send ``number`` to ``target``."""

    component: str
    state: str
    number: signal.Signals
    target: str

    def __str__(self) -> str:
        to = "" if self.target == self.component else f"-to-{self.target}"
        return f"{self.component}.{self.state}-{self.number.name}{to}"

    @property
    def own(self) -> bool:
        """Whether the held process is the one that is signalled."""
        return self.target == self.component


@dataclass
class Outcome:
    """What became of a run after a signal; the times are in seconds."""

    case: str
    component: str
    state: str
    signal: str
    target: str
    end: str = ""  # ended, serves, hangs
    exit_code: int | None = None
    seconds: float = 0.0
    hang: float = 0.0
    limit: float = LIMIT
    left: list[str] = field(default_factory=list)
    failed: str | None = None  # what the owner says has failed
    fell_back: bool = False


def spec_states(spec_path: Path, workers: int = 2) -> list[tuple[str, str]]:
    """Every (component label, state) that a start on a CPU publishes, in the spec's order."""
    plan = _plan(spec_path, workers)
    return [
        (label(component, index), state)
        for component, index in plan.instances()
        for state in plan.states(component)
        if not plan.at_exit(component, state) and plan.passed(component, state)
    ]


def root_of(spec_path: Path) -> str:
    """The component whose process begins the run."""
    (root,) = _plan(spec_path, 1).roots()
    return root


def not_asked_for(spec_path: Path) -> set[tuple[str, str]]:
    """The (component, state) of children that began before the engine asked for them.

    Whatever happens to such a child there, the engine starts its own.
    """
    plan = _plan(spec_path, 1)
    found = set()
    for name, entry in plan.components.items():
        if (entry["process"] or {}).get("start"):
            early = [plan.states(name)[0], *plan.births(name)]
            found |= {(name, state) for state in early}
    return found


def _plan(spec_path: Path, workers: int) -> Plan:
    spec, diagnostics = api.load(spec_path)
    assert spec is not None, [d.message for d in diagnostics]
    plan = Plan.of(api.compile_plan(spec))
    plan.params["workers"] = workers
    plan.settle(argv=[])
    return plan


def matrix(spec_path: Path) -> list[Case]:
    """All cases of a spec: own signals, the frontend's while it waits, and Ctrl-C."""
    root = root_of(spec_path)
    states = spec_states(spec_path)
    own = [Case(c, s, number, c) for c, s in states for number in SIGNALS]
    # The replicas are alike: one of them held is enough to make the others wait.
    others = [(c, s) for c, s in states if c != root and not c.endswith("[1]")]
    waiting = [Case(c, s, number, root) for c, s in others for number in SIGNALS[:2]]
    ctrl_c = [Case(c, s, signal.SIGINT, GROUP) for c, s in others]
    return own + waiting + ctrl_c


# -- one case ------------------------------------------------------------------------


def hold(case: Case, spec_path: Path) -> dict[str, str]:
    """The environment that holds the case's process at its state.

    Where the engine has not asked for that process yet, it is kept from it until the signal
    is sent: the root is held at its config.
    """
    root = root_of(spec_path)
    up = (case.component, case.state) == (root, _last(spec_path, case.component))
    seconds = SHORT_HOLD if case.own and (case.component != root or up) else LONG_HOLD
    held = [f"{case.component}.{case.state}={seconds}:after"]
    if case.own and (split_label(case.component)[0], case.state) in not_asked_for(spec_path):
        held.append(f"{root}.ConfigReady={SHORT_HOLD}")
    return {"CFAC_DELAY": ",".join(held)}


def _last(spec_path: Path, component: str) -> str:
    return [state for name, state in spec_states(spec_path) if name == component][-1]


def strike(server: Any, case: Case, root: str) -> Outcome:
    """Wait for the state, send the signal, and watch what becomes of the run."""
    pid = tiny.wait_for_state(server.runs, case.component, case.state, timeout=300)
    if case.target == root:
        pid = server.process.pid
    return watch(server, case, pid)


def send(server: Any, case: Case, pid: int) -> None:
    if case.target == GROUP:
        os.killpg(server.process.pid, case.number)
    else:
        os.kill(pid, case.number)


def watch(server: Any, case: Case, pid: int) -> Outcome:
    """Signal ``pid``, or the group; then look until all has ended, or serves, or hangs."""
    outcome = Outcome(str(case), case.component, case.state, case.number.name, case.target)
    sent = time.monotonic()
    crowd = []  # how many want each CPU, looked at all the time
    put_off = 0.0  # the signalled process outlives its hold: it put the signal off
    send(server, case, pid)
    while True:
        now = time.monotonic()
        if case.own and now > sent + SHORT_HOLD and not tiny.gone(pid):
            put_off = put_off or now
        crowd.append(crowding())
        moved = max(sent, put_off, last_publish(server))
        left = leftovers(server)
        if not server.running() and not left:
            outcome.end = "ended"
            break
        if now - sent > LIMIT and serves(server):  # until then it may be on its way out
            outcome.end = "serves"
            break
        if now - moved > 2 * LIMIT and now - moved > 2 * LIMIT * mean(crowd):
            outcome.end, outcome.left = "hangs", left
            break
        time.sleep(0.05)
    outcome.seconds = round(now - sent, 2)
    outcome.hang = round(now - moved, 2) if outcome.end != "serves" else 0.0
    outcome.exit_code = server.process.poll()
    outcome.limit = round(LIMIT * mean(crowd), 2)
    outcome.failed = failure(server)
    log = server.log
    outcome.fell_back = "started by the engine itself" in log
    return outcome


def failure(server: Any) -> str | None:
    """What the owner says of a component that failed; it may be a moment late."""
    lines: list[str] = []

    def said() -> bool:
        lines[:] = [
            line.partition(": component ")[2]
            for line in server.log.splitlines()
            if line.startswith("cfac: run ") and ": component " in line and " failed: " in line
        ]
        return bool(lines)

    tiny.wait_until(said, timeout=1)
    return lines[0] if lines else None


def serves(server: Any) -> bool:
    """Whether the engine answers a completion."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=2):
            pass
        return bool(server.complete(tokens=2)["tokens"])
    return False


def last_publish(server: Any) -> float:
    """When a state of the run was last published (monotonic seconds); 0 if none was."""
    latest = 0
    for file in server.runs.glob("*/*.jsonl") if server.runs else ():
        for line in file.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event["e"] == "publish":
                    latest = max(latest, event["t"])
    return latest / 1e9


def leftovers(server: Any) -> list[str]:
    """What lives of a server: its session, and whatever carries its run's id."""
    found = set(session_members(server.process.pid))
    run = server.run_folder()
    if run is not None:
        found |= {pid for pid in processes_of_run(run.name) if not tiny.gone(pid)}
        found |= set(owners(run))
    return [f"{pid} {command(pid)}" for pid in sorted(found)]


def left_after(server: Any, seconds: float = 30) -> list[str]:
    """What is left of a server that was stopped, once it had the time to go."""
    tiny.wait_until(lambda: not leftovers(server), timeout=seconds)
    return leftovers(server)


def session_members(session: int) -> Iterator[int]:
    """The living processes of a session (proc(5), stat, field 6)."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{int(entry)}/stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                yield int(entry)


def owners(run: Path) -> Iterator[int]:
    """The owner of a run, if it lives."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            words = Path(f"/proc/{int(entry)}/cmdline").read_bytes()
            if b"owner_main" in words and run.name.encode() in words:
                yield int(entry)


def command(pid: int) -> str:
    """A process's command line, without the path of this checkout: reports are committed."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return words.decode(errors="replace").replace(f"{ROOT}/", "").strip()[:80]
    return "?"


def crowding() -> float:
    """How many processes want each CPU now; 1 or more (proc(5), stat)."""
    text = Path("/proc/stat").read_text()
    (running,) = (line for line in text.splitlines() if line.startswith("procs_running"))
    return max(1.0, int(running.split()[1]) / (os.cpu_count() or 1))


# -- the report ----------------------------------------------------------------------


class Report:
    """The outcomes of one spec's cases, kept on disk: a later run replaces its own cases."""

    def __init__(self, path: Path, versions: dict[str, str]) -> None:
        self.path = path
        self.versions = versions

    def add(self, outcome: Outcome) -> None:
        """Write the outcome into the file."""
        cases = json.loads(self.path.read_text())["cases"] if self.path.exists() else {}
        entry = asdict(outcome)
        cases[entry.pop("case")] = entry
        data = {
            "versions": self.versions,
            "ends": dict(Counter(case["end"] for case in cases.values())),
            "longest_hang": max(
                (c["hang"] for c in cases.values() if c["end"] == "ended"), default=0
            ),
            "cases": dict(sorted(cases.items())),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
