"""``cfac analyze``: how long a start takes, and what is to blame (docs/analyze.md)."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cfac.compiler.analyze import Query, Recorded, SelectionError, record
from cfac.compiler.analyze import analyze as analyze_spec
from cfac.compiler.analyze.select import duration
from cfac.compiler.api import check, load
from cfac.compiler.diagnostics import did_you_mean
from cfac.compiler.layouts.options import layout_options
from cfac.compiler.model import Scalar, Spec
from cfac.compiler.render import emit


@click.command()
@click.argument("spec", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--trace",
    "runs",
    multiple=True,
    metavar="RUN",
    help="Take costs from a recorded run (an id, the start of one, or a folder); "
    "of several, the median.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TRANSITION=TIME",
    help="A transition's cost, as in core.Constructed=12s.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="AWAITED:WAITING",
    help="Leave a dependency out, as in core.Ready:frontend.Ready.",
)
@click.option("--cores", type=click.IntRange(1), help="Also predict for this number of cores.")
@click.option(
    "--no-core",
    "coreless",
    multiple=True,
    metavar="TRANSITION",
    help="With --cores: a transition that keeps no core busy, as one that sleeps.",
)
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="PARAM=VALUE",
    help="A parameter; by default as in the first run, else its default.",
)
@click.option(
    "-f",
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    help="The format; by default text.",
)
@click.option("--top", type=click.IntRange(1), default=10, help="Entries per list of the text.")
@layout_options
def analyze(
    spec: Path,
    runs: tuple[str, ...],
    settings: tuple[str, ...],
    without: tuple[str, ...],
    cores: int | None,
    coreless: tuple[str, ...],
    params: tuple[str, ...],
    format_: str,
    top: int,
    model: str | None,
    chunk_size: str | None,
) -> None:
    """Predict how long SPEC's start takes: its critical path, slack and blame.

    Costs are those of --set, of recorded runs, or of the spec's states. The prediction is
    compared with the chain, the stock order.
    """
    if coreless and cores is None:
        raise click.UsageError("--no-core has a meaning only with --cores")
    loaded, diagnostics = load(spec, model=model, chunk_size=chunk_size)
    if loaded is not None and not diagnostics.errors:
        diagnostics.extend(check(loaded).diagnostics)
    emit(diagnostics.sorted(), loaded.sources if loaded else None)
    if loaded is None or diagnostics.errors:
        sys.exit(1)
    try:
        query = Query(
            params=_params(loaded, params),
            recorded=_recorded(runs) if runs else None,
            settings=tuple(_setting(text) for text in settings),
            without=without,
            cores=cores,
            coreless=coreless,
        )
        found = analyze_spec(loaded, query)
    except SelectionError as error:
        raise click.UsageError(str(error)) from error

    from cfac.compiler.analyze import data, text

    warning = text.warning(found.missing)
    if warning is not None:
        click.echo(warning, err=True)
    click.echo(data.render(found) if format_ == "json" else text.render(found, top), nl=False)


def _setting(text: str) -> tuple[str, int]:
    name, equals, time = text.partition("=")
    if not equals:
        raise SelectionError(f"--set {text!r} is not TRANSITION=TIME, as in core.Ready=1.5s")
    return name.strip(), duration(time)


def _params(spec: Spec, settings: tuple[str, ...]) -> dict[str, Scalar]:
    from cfac.runtime.plan import convert

    values: dict[str, Scalar] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        param = spec.params.get(name)
        if not equals:
            raise SelectionError(f"--param {setting!r} is not PARAM=VALUE")
        if param is None:
            hint = did_you_mean(name, spec.params)
            raise SelectionError(
                f"the spec has no parameter {name!r}" + (f" ({hint})" if hint else "")
            )
        try:
            values[name] = convert({"type": param.type}, text)
        except ValueError as error:
            raise SelectionError(f"--param {setting!r}: {error}") from error
    return values


def _recorded(runs: tuple[str, ...]) -> Recorded:
    from cfac.compiler.commands.trace import find_folder, reading
    from cfac.runtime.history import read_run

    histories = []
    for name in runs:
        folder = find_folder(name)
        with reading(folder):
            histories.append(read_run(folder))
            record(histories[-1:])  # a damaged run is named
    return record(histories)
