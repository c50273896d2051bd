"""``cfac trace``: show, verify and export the trace of a run."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cfac.runtime.errors import ChannelError
from cfac.runtime.history import History, find_run, read_run

if TYPE_CHECKING:
    from cfac.compiler.draw.timeline import Timeline

_SUFFIXES = {".json": "perfetto", ".html": "html", ".htm": "html", ".svg": "svg"}
#: What damaged files make of reading them.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@click.group()
def trace() -> None:
    """Look at a recorded run.

    RUN is a run's id (or a unique start of one), its folder, or nothing: the latest.
    """


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn what a damaged folder makes of reading it into one line."""
    try:
        yield
    except FileNotFoundError as error:
        name = Path(str(error.filename)).name
        raise click.ClickException(f"{folder} is not a run's folder: no {name}") from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror}") from error
    except ChannelError as error:
        raise click.ClickException(f"{folder}: {error}") from error
    except _DAMAGE as error:
        what = f"{type(error).__name__}: {error}"
        raise click.ClickException(f"the run in {folder} is damaged: {what}") from error


def find_folder(name: str | None) -> Path:
    """The folder of the run called ``name``; one line to the user if there is none."""
    try:
        return find_run(name)
    except ChannelError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error


def _timeline(name: str | None, title: str | None = None) -> Timeline:
    from cfac.compiler.draw.timeline import read

    folder = find_folder(name)
    with reading(folder):
        return read(read_run(folder), title)


@trace.command()
@click.argument("run", required=False)
def show(run: str | None) -> None:
    """Print the timeline of RUN: a line per transition, with bars."""
    from cfac.compiler.draw import timeline_text

    encoding = sys.stdout.encoding or "ascii"
    columns = shutil.get_terminal_size((100, 24)).columns
    pens = timeline_text.pens_for(encoding)
    text = timeline_text.render(_timeline(run), columns, pens)
    if pens is timeline_text.ASCII:
        text = text.encode("ascii", "backslashreplace").decode()
    click.echo(text, nl=False)


@trace.command()
@click.argument("run", required=False)
@click.option("--chain", is_flag=True, help="Also compare with the stock order (Theorem 2).")
def verify(run: str | None, chain: bool) -> None:
    """Check that RUN followed its spec; exit code 1 and a line per deviation if not."""
    from cfac.compiler.draw.timeline import one_line
    from cfac.runtime.verify import verify as verify_run

    folder = find_folder(run)
    with reading(folder):
        history: History = read_run(folder)
        findings = verify_run(history, chain=chain)
        number = history.info["id"]
    for finding in findings:
        message = finding.message.removeprefix(f"{finding.kind}: ")
        click.echo(one_line(f"{finding.kind}: {message}"), err=True)
    engine = history.plan is not None and history.plan.data.get("engine") is not None
    if engine and not history.info.get("observe") and any(f.kind == "chain" for f in findings):
        click.echo(
            "the chain is the stock order: compare a run recorded with CFAC_OBSERVE=1", err=True
        )
    if findings:
        sys.exit(1)
    what = "its spec and the chain" if chain else "its spec"
    click.echo(f"run {number} follows {what}: {len(history.publishes)} states, each once")


@trace.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option(
    "-f",
    "--format",
    "format_",
    type=click.Choice(["perfetto", "svg", "html"]),
    help="The format; by default that of -o's suffix (.json, .svg, .html), else perfetto.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; by default standard output.",
)
@click.option("--label", "labels", multiple=True, help="What to call each run, in their order.")
def export(
    runs: tuple[str, ...], format_: str | None, output: Path | None, labels: tuple[str, ...]
) -> None:
    """Write RUNs as Perfetto JSON, or as a timeline picture or page.

    Several runs stand one above the other on one time axis: before and after.
    """
    from importlib import import_module

    names: tuple[str | None, ...] = runs or (None,)
    if len(labels) > len(names):
        raise click.UsageError(f"{len(labels)} labels for {len(names)} runs")
    if format_ is None:
        suffix = output.suffix.lower() if output else ""
        format_ = _SUFFIXES.get(suffix, "perfetto")
    titles: list[str | None] = [*labels, *([None] * (len(names) - len(labels)))]
    timelines = [_timeline(name, title) for name, title in zip(names, titles, strict=True)]
    module = import_module(f"cfac.compiler.draw.timeline_{format_}")
    data: bytes = module.render(timelines).encode("utf-8", "backslashreplace")
    if output is None:
        click.echo(data, nl=False)
    else:
        try:
            output.write_bytes(data)
        except OSError as error:
            raise click.FileError(str(output), error.strerror) from error
