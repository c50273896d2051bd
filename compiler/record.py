"""From the trace of a recorded start to a recording (see ``recordings``)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from cfac.compiler.model import Spec
from cfac.compiler.recordings import MODULE, Interval, Recording, common, within, without
from cfac.runtime.history import History
from cfac.runtime.plan import Plan
from cfac.runtime.table import label

#: How long importing everything once may take (seconds); real engines need about ten.
PROBE_TIMEOUT = 900.0


class RecordError(Exception):
    """A run cannot be made into a recording; the text says why."""


def open_states(history: History) -> list[str]:
    """The stock states that the run has not reached (yet), as ``worker[0].Ready``."""
    plan = _plan(history)
    return [
        f"{label(component, index)}.{state}"
        for component, index in plan.instances()
        for state in plan.states(component)[1:]
        if state not in plan.components[component]["aux"]
        and history.end(label(component, index), state) is None
    ]


def unsupported(history: History) -> str | None:
    """Why the engine started as stock, unobserved; None: it did not."""
    notes = (str(event.get("text", "")) for event in history.of("note"))
    found = (note.removeprefix("unsupported: ") for note in notes if "unsupported: " in note)
    return next(found, None)


def last_import(history: History) -> int:
    """When anything was imported last, as far as the trace knows; CLOCK_MONOTONIC, ns."""
    return max((event["t"] for event in history.of("imports")), default=0)


def check_fit(history: History, spec: Spec) -> None:
    """RecordError if the run is not of the engine and the stock states of ``spec``."""
    data = _plan(history).data
    package = (data["engine"] or {}).get("package")
    wanted = spec.engine.package if spec.engine else None
    if package is None or package != wanted:
        raise RecordError(f"the run is of the engine {package}, and {spec.name} is of {wanted}")
    for name, component in spec.components.items():
        entry = data["components"].get(name, {"states": [], "aux": []})
        there = [state for state in entry["states"] if state not in entry["aux"]]
        if there != [state.name for state in component.states if not state.aux]:
            raise RecordError(
                f"the run is of the plan {data['name']}, whose {name} has other stock states "
                f"than that of {spec.name}"
            )


def from_run(history: History, *, until: int | None = None) -> Recording:
    """What a run's processes imported; with ``until`` (ns) only what they did before.

    RecordError where the start is not complete, or was not recorded.
    """
    reason = unsupported(history)
    if reason is not None:
        raise RecordError(f"the engine started as stock: {reason}")
    lacking = open_states(history)
    if lacking:
        raise RecordError(f"the start is not complete: {', '.join(lacking)} was not reached")
    found: dict[tuple[str, int | None], dict[str | None, dict[str, str | None]]] = {}
    for event in history.of("imports"):
        if event["s"] is None and until is not None and event["t"] > until:
            continue
        states = found.setdefault((event["c"], event["i"]), {})
        states.setdefault(event["s"], {}).update(_wanted(event["modules"]))
    if not found:
        raise RecordError("no imports are recorded: start the engine with CFAC_RECORD=imports")
    components: dict[str, list[tuple[Interval, ...]]] = {}
    for component, index in sorted(found, key=lambda key: (key[0], key[1] or 0)):
        states = found[component, index]
        intervals = [Interval(s, within(m)) for s, m in states.items() if s is not None]
        intervals.append(Interval(None, within(states.get(None, {}))))
        components.setdefault(component, []).append(tuple(intervals))
    return Recording(
        engine=_plan(history).data["engine"]["package"],
        version=_version(history),
        runs=1,
        components={name: common(replicas) for name, replicas in components.items()},
        torch=next((e["torch"] for e in history.of("interpreter") if e.get("torch")), None),
    )


def _wanted(modules: Iterable[list[str | None]]) -> dict[str, str | None]:
    """Without what cfac itself has imported."""
    return {
        str(name): importer
        for name, importer in modules
        if (importer or "").partition(".")[0] != "cfac" and MODULE.fullmatch(str(name))
    }


def _plan(history: History) -> Plan:
    if history.plan is None:
        raise RecordError(f"{history.folder} has no plan")
    return history.plan


def _version(history: History) -> str | None:
    for event in history.of("interpreter"):
        try:
            return Version(str(event["version"])).public
        except InvalidVersion:
            continue
    return None


def cleaned(recording: Recording, history: History) -> tuple[Recording, dict[str, str], list[str]]:
    """Without what should not be imported early; what fails (with why), what starts threads.

    All modules are imported once, in the recorded order, by the interpreter that was
    recorded.  What it has anyway when it starts is left out silently.
    """
    event: dict[str, Any] | None = next(history.of("interpreter"), None)
    if event is None:
        raise RecordError("the run has not said which interpreter it is of")
    names = dict.fromkeys(
        n for component in recording.components for n in recording.modules(component)
    )
    job = {"path": event["path"], "modules": list(names)}
    keep = {k: v for k, v in os.environ.items() if not k.startswith("CFAC_")}
    probe = Path(__file__).with_name("probe.py").read_text("utf-8")
    try:
        done = subprocess.run(
            [event["executable"], "-c", probe],
            input=json.dumps(job),
            env=keep | {"CFAC_DISABLE": "1"},
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT,
        )
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        text = f"importing the modules once did not work ({type(error).__name__}: {error})"
        raise RecordError(text) from error
    failed: dict[str, str] = answer["failed"]
    threads = [name for name in answer["threads"] if name in names]
    return without(recording, {*answer["there"], *failed, *threads}), failed, threads
