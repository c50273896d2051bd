"""Patched copies of examples/tiny_engine, and running them: seconds instead of minutes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cfac.codegen.apply import apply
from cfac.codegen.compile import CompileResult, compile_engine
from cfac.codegen.engine import Engine, find_engine
from cfac.codegen.hook import build_hook
from cfac.compiler import api
from cfac.runtime.history import read_run
from cfac.runtime.processes import processes_of_run
from cfac.runtime.verify import verify

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "tiny_engine"
#: Seconds that a test gives what must happen, on however slow and busy a machine.
PATIENCE = 300

#: What start() has started in the current test.
_started: list[subprocess.Popen[str]] = []


def patched_copy(
    target: Path, spec_text: str | None = None, prepare: Callable[[Path], None] | None = None
) -> Path:
    """Copy the tiny engine to ``target`` and patch it with its own spec, or another.

    ``prepare`` may change the copy before it is patched.
    """
    apply(_compiled(target, spec_text, prepare)[1].patch, target)
    return target


def hooked_copy(target: Path, spec_text: str | None = None) -> Path:
    """Copy the tiny engine to ``target``, with an environment in which its hook is installed.

    cfac is not in that environment; python() and environment() know of it.
    """
    engine, result = _compiled(target, spec_text)
    _, wheel = build_hook("tiny", "0" * 64, engine.package, engine.version, result.changes)
    venv.create(target / "venv", symlinks=True)
    (site,) = (target / "venv").glob("lib/python3*/site-packages")
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        archive.extractall(site)
    return target


BACK_ENDS = {"patch": patched_copy, "hook": hooked_copy}
#: For a test whose fixture ``engine`` is made by copy(): once for each back end.
both_back_ends = pytest.mark.parametrize("engine", BACK_ENDS, indirect=True)


def copy(request: pytest.FixtureRequest, target: Path, spec_text: str | None = None) -> Path:
    """What patched_copy gives; for a test of both back ends, what they give."""
    return BACK_ENDS[getattr(request, "param", "patch")](target, spec_text)


def python(engine: Path) -> str:
    """The Python that runs a copy of the engine."""
    own = engine / "venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def lines(engine: Path) -> int:
    """How many lines cfac logs in a start without trouble: the run's, and the hook's."""
    return 1 if python(engine) == sys.executable else 2


def _compiled(
    target: Path, spec_text: str | None, prepare: Callable[[Path], None] | None = None
) -> tuple[Engine, CompileResult]:
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    if prepare is not None:
        prepare(target)
    spec_path = target / "startup.yaml"
    if spec_text is not None:
        (target / "base.yaml").write_bytes(spec_path.read_bytes())
        spec_path.write_text(spec_text)
    spec, diagnostics = api.load(spec_path)
    assert spec is not None
    assert not diagnostics.errors, [d.message for d in diagnostics]
    engine = find_engine(spec, target, diagnostics)
    assert engine is not None, [d.message for d in diagnostics]
    result = compile_engine(spec, engine)
    assert result.ok, [d.message for d in result.diagnostics]
    return engine, result


def environment(runs: Path, engine: Path | None = None, **extra: str) -> dict[str, str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith("CFAC_")}
    hooked = engine is not None and python(engine) != sys.executable
    base |= {"CFAC_HOOK": "1", "PYTHONPATH": ""} if hooked else {"PYTHONPATH": str(ROOT)}
    return base | {"CFAC_RUNS": str(runs)} | extra


def start(
    engine: Path,
    runs: Path,
    *arguments: str,
    installed: bool = True,
    group: bool = False,
    **extra: str,
) -> subprocess.Popen[str]:
    """Start the tiny engine's frontend; it answers on its standard input.

    ``group``: in a process group of its own.
    """
    if not installed:  # -S: an editable install must not be found either
        extra["PYTHONPATH"] = ""
    process = subprocess.Popen(
        [python(engine), *([] if installed else ["-S"]), "-m", "tinyengine.frontend", *arguments],
        cwd=engine,
        env=environment(runs, engine, **extra),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=group,
    )
    _started.append(process)
    return process


def run(
    engine: Path, runs: Path, *arguments: str, installed: bool = True, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Start, ask for one sum, stop; the outcome."""
    process = start(engine, runs, *arguments, installed=installed, **extra)
    out, err = process.communicate("1 2 3\n", timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_script(engine, runs, text, **extra):
    """Run a Python program in the engine's folder; the outcome."""
    script = engine / "script.py"
    script.write_text(text)
    return subprocess.run(
        [python(engine), str(script)],
        cwd=engine,
        env=environment(runs, engine, **extra),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def run_folders(runs: Path) -> list[Path]:
    return sorted(path.parent for path in runs.glob("*/run.json"))


def history(runs: Path):
    (folder,) = run_folders(runs)
    return read_run(folder)


def messages(history, **options) -> list[str]:
    """What ``verify`` finds in a run, a line each."""
    return [f"{finding.kind}: {finding.message}" for finding in verify(history, **options)]


def wait_for_state(runs: Path, component: str, state: str, timeout: float = PATIENCE) -> int:
    """Wait until a process has recorded the state; its pid."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for file in runs.glob("*/*.jsonl"):
            for line in file.read_text().splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                name = event.get("c")
                if event.get("i") is not None:
                    name = f"{name}[{event['i']}]"
                if event["e"] == "publish" and (name, event["s"]) == (component, state):
                    return int(file.stem)
        time.sleep(0.01)
    raise AssertionError(f"{component}.{state} was not reached")


def owner_of(runs: Path) -> int:
    """The pid of the (single) run's owner."""
    (folder,) = run_folders(runs)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if b"owner_main" in command and str(folder).encode() in command:
                return int(entry)
    raise AssertionError("no owner")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_until(condition, timeout: float = PATIENCE) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def nothing_left(runs: Path, timeout: float = PATIENCE) -> bool:
    """Whether all processes of all recorded runs end, found by their run ids."""
    ids = [folder.name for folder in run_folders(runs)]
    return wait_until(lambda: not any(processes_of_run(run_id) for run_id in ids), timeout)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_at(engine: Path, runs: Path, component: str, state: str) -> str:
    """Kill a process of a two-worker start right after its state; all ends, stderr is returned."""
    delay = f"{component}.{state}=600:after"
    process = start(engine, runs, "--workers", "2", CFAC_DELAY=delay)
    kill(wait_for_state(runs, component, state))
    assert nothing_left(runs)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert f"component {component} failed" in err
    return err


def end_started() -> None:
    """Kill the frontends that start() has started, and forget them."""
    for process in _started:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
    _started.clear()


def end_session(process: subprocess.Popen[str]) -> None:
    """Kill a process that leads a session of its own, and what is left of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_runs(folder: Path) -> None:
    """Kill the processes of all runs that are recorded anywhere under a folder."""
    for recorded in folder.glob("**/run.json"):
        for pid in processes_of_run(recorded.parent.name):
            with contextlib.suppress(ProcessLookupError):
                kill(pid)
