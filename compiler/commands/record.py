"""``cfac record``: derive from an observed start what a schedule may do early."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from cfac.compiler import record as recorder
from cfac.compiler.load import load
from cfac.compiler.model import Spec
from cfac.compiler.record import RecordError
from cfac.compiler.recorded import recording_file
from cfac.compiler.recordings import Recording, merged, parse, reduced, render
from cfac.compiler.render import emit
from cfac.runtime.errors import ChannelError
from cfac.runtime.history import History, find_run, read_run

#: How often the trace is read, and how long the engine may take to stop, seconds.
_PAUSE = 0.5
_STOP = 120.0


@click.command(short_help="Record what a start imports, for 'import: recorded'.")
@click.argument("spec", type=click.Path(exists=True, dir_okay=False))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--imports", is_flag=True, required=True, help="Record what is imported.")
@click.option("--run", "runs", multiple=True, help="Take this recorded run; start nothing.")
@click.option("--add", is_flag=True, help="Keep of the file there is what this start imports too.")
@click.option(
    "--settle",
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Once ready, stop the engine when nothing was imported for so long.",
)
@click.option("--then", metavar="COMMAND", help="Once ready, run this first: a request, say.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="The file to write; by default SPEC's name with .imports.json.",
)
def record(
    spec: str,
    command: tuple[str, ...],
    imports: bool,
    runs: tuple[str, ...],
    add: bool,
    settle: float,
    then: str | None,
    output: str | None,
) -> None:
    """Start a patched engine with COMMAND, in the engine's own order, and record it.

    The engine is stopped (SIGTERM) when every component is ready and nothing has been
    imported for a while; Ctrl-C stops it earlier. Requests that it answers until then
    count: what they import is imported in idle time. Writes SPEC.imports.json.

    With --run, COMMAND is left out: the run was started with CFAC_RECORD=imports and
    CFAC_OBSERVE=1.
    """
    if bool(command) == bool(runs):
        raise click.UsageError("give either a COMMAND after --, or --run")
    model = _model(spec)
    path = Path(output or recording_file(spec))
    base = _existing(path) if add else None
    try:
        if command:
            new, left_out = _start(command, model, settle, then)
        else:
            new, left_out = _take(runs, model)
    except RecordError as error:
        raise click.ClickException(str(error)) from error
    if base is not None:
        if base.engine != new.engine or base.version != new.version:
            old = f"{base.engine} {base.version}"
            message = f"{path} is of {old}, and this is {new.engine} {new.version}: record anew"
            raise click.ClickException(message)
        if base.torch != new.torch:
            message = f"{path} was recorded with torch for {base.torch}, and this is for "
            raise click.ClickException(f"{message}{new.torch}: record anew, into another file")
        new = merged(base, new)
    written = reduced(new)
    try:
        path.write_text(render(written), "utf-8")
    except OSError as error:
        raise click.FileError(str(path), error.strerror) from error
    _summarize(path, written, left_out)
    if output is None:
        _say_what_for(spec)


def _model(spec: str) -> Spec:
    model, diagnostics = load(spec, recordings=False)
    if diagnostics.errors:
        emit(diagnostics.sorted(), model.sources if model else None)
    if model is None or diagnostics.errors:
        sys.exit(1)
    if model.engine is None:
        raise click.ClickException(f"{spec} names no engine")
    return model


def _existing(path: Path) -> Recording | None:
    try:
        return parse(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: {error}") from error


# -- a start of our own -----------------------------------------------------------


def _start(
    command: tuple[str, ...], spec: Spec, settle: float, then: str | None
) -> tuple[Recording, list[str]]:
    """Run the engine until it has settled; its recording, and what is left out of it."""
    folder = Path(tempfile.mkdtemp(prefix="cfac-record-"))
    environment = {k: v for k, v in os.environ.items() if k not in ("CFAC_RUN", "CFAC_DISABLE")}
    environment |= {"CFAC_RECORD": "imports", "CFAC_OBSERVE": "1", "CFAC_RUNS": str(folder)}
    try:
        engine = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise RecordError(f"{command[0]}: {error.strerror}") from error
    try:
        try:
            _await_ready(engine, folder)
            with contextlib.suppress(KeyboardInterrupt):
                _await_quiet(engine, folder, settle, then)
            until = time.monotonic_ns()
        finally:
            _stop(engine)
        history = _history(folder)
        if history is None:
            raise RecordError("the run's trace is gone")
        return _recording([history], spec, until)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _history(folder: Path) -> History | None:
    """The latest run in the folder; None if there is none yet."""
    found = sorted(folder.glob("*/run.json"))
    try:
        return read_run(found[-1].parent) if found else None
    except (OSError, ValueError, ChannelError):
        return None  # being written


def _await_ready(engine: subprocess.Popen[bytes], folder: Path) -> None:
    while True:
        history = _history(folder)
        if history is not None:
            reason = recorder.unsupported(history)
            if reason is not None:
                raise RecordError(f"the engine started as stock: {reason}")
            if not recorder.open_states(history):
                return
        if engine.poll() is not None:
            why = "before it was ready" if history else "without a run: is it patched?"
            raise RecordError(f"the engine ended with exit code {engine.returncode} {why}")
        time.sleep(_PAUSE)


def _await_quiet(
    engine: subprocess.Popen[bytes], folder: Path, settle: float, then: str | None
) -> None:
    if then is not None:
        try:
            code = subprocess.run(shlex.split(then)).returncode
        except (OSError, ValueError) as error:
            raise RecordError(f"{then}: {error}") from error
        if code != 0:
            raise RecordError(f"exit code {code}: {then}")
    ready = time.monotonic_ns()
    while engine.poll() is None:
        history = _history(folder)
        last = max(ready, recorder.last_import(history) if history else 0)
        if time.monotonic_ns() - last >= settle * 1e9:
            return
        time.sleep(min(_PAUSE, settle))
    raise RecordError(f"the engine ended with exit code {engine.returncode}")


def _stop(engine: subprocess.Popen[bytes]) -> None:
    if engine.poll() is None:
        engine.terminate()
    try:
        engine.wait(_STOP)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait()


def _take(runs: tuple[str, ...], spec: Spec) -> tuple[Recording, list[str]]:
    """The recording of runs that are there already."""
    histories = []
    for name in runs:
        try:
            histories.append(read_run(find_run(name)))
        except (OSError, ValueError, ChannelError) as error:
            raise RecordError(f"{name}: {error}") from error
    return _recording(histories, spec, None)


def _recording(
    histories: list[History], spec: Spec, until: int | None
) -> tuple[Recording, list[str]]:
    found: Recording | None = None
    for history in histories:
        recorder.check_fit(history, spec)
        new = recorder.from_run(history, until=until)
        found = new if found is None else merged(found, new)
    assert found is not None
    click.echo("importing all of it once, to see what should be left out ...", err=True)
    found, failed, threads = recorder.cleaned(found, histories[-1])
    left_out = [f"{name}: {why}" for name, why in failed.items()]
    return found, left_out + [f"{name}: it starts a thread" for name in threads]


# -- what is said -------------------------------------------------------------------


def _summarize(path: Path, recording: Recording, left_out: list[str]) -> None:
    starts = f"{recording.runs} start{'s' if recording.runs > 1 else ''}"
    click.echo(f"{path}: {recording.engine} {recording.version or '(version unknown)'}, {starts}")
    width = max(len(name) for name in recording.components)
    for name, intervals in sorted(recording.components.items()):
        counts = [f"{len(i.modules)} until {i.until}" for i in intervals if i.until is not None]
        late = sum(len(interval.modules) for interval in intervals if interval.until is None)
        click.echo(f"  {name:{width}}  modules: {', '.join(counts)}, {late} later")
    if left_out:
        click.echo(f"  left out: {len(left_out)}")
    for line in left_out[:10]:
        click.echo(f"    {line.splitlines()[0][:160]}")
    if len(left_out) > 10:
        click.echo(f"    ... and {len(left_out) - 10} more")


def _say_what_for(spec: str) -> None:
    """What the spec makes of the new recording."""
    model, diagnostics = load(spec)
    emit(diagnostics.sorted(), model.sources if model else None)
    for component, state in model.transitions() if model else ():
        if state.recorded_part is not None:
            first, end = state.recorded_part
            click.echo(f"  {component.name}.{state.name} imports {end - first} of them")
