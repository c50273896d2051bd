"""``cfac graph``: draw a spec."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from cfac.compiler.api import check, load
from cfac.compiler.diagnostics import did_you_mean
from cfac.compiler.draw import FORMATS, render
from cfac.compiler.draw.build import absent, collapsed, expanded
from cfac.compiler.layouts.options import layout_options
from cfac.compiler.model import Param, Scalar, Spec
from cfac.compiler.render import emit

_BOOLEANS = {"true": True, "false": False}


@click.command()
@click.argument("spec", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-f",
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="The format; by default that of -o's suffix (.svg, .dot, .mmd, .json), else dot.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; by default standard output.",
)
@click.option("--expand", is_flag=True, help="Draw every replica, not each component once.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PARAM=VALUE",
    help="A parameter's value for --expand, as in --set workers=4.",
)
@layout_options
def graph(
    spec: Path,
    format_: str | None,
    output: Path | None,
    expand: bool,
    settings: tuple[str, ...],
    model: str | None,
    chunk_size: str | None,
) -> None:
    """Draw SPEC's graph.

    What is wrong with the spec goes to standard error and makes the exit code 1, but
    the drawing is made all the same, with a cycle in red.
    """
    if settings and not expand:
        raise click.UsageError("--set has a meaning only with --expand")
    if format_ is None:
        format_ = _by_suffix(output)
    loaded, diagnostics = load(spec, model=model, chunk_size=chunk_size)
    if loaded is not None:
        values = _values(loaded, settings)
        diagnostics.extend(check(loaded).diagnostics)
    emit(diagnostics.sorted(), loaded.sources if loaded else None)
    if loaded is None:
        sys.exit(1)
    if expand:
        counts = {name: n for name, n in values.items() if type(n) is int}
        scene = expanded(loaded, counts, absent(loaded, values))
    else:
        scene = collapsed(loaded)
    drawing = render(scene, format_).encode("utf-8", "backslashreplace")
    if output is None:
        click.echo(drawing, nl=False)
    else:
        try:
            output.write_bytes(drawing)
        except OSError as error:
            raise click.FileError(str(output), error.strerror) from error
    if diagnostics.errors:
        sys.exit(1)


def _by_suffix(output: Path | None) -> str:
    suffix = output.suffix.lower().removeprefix(".") if output else ""
    suffix = {"mmd": "mermaid", "gv": "dot"}.get(suffix, suffix)
    return suffix if suffix in FORMATS else "dot"


def _values(spec: Spec, settings: tuple[str, ...]) -> Mapping[str, Scalar]:
    """The parameters set on the command line, by name."""
    values: dict[str, Scalar] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not PARAM=VALUE", param_hint="--set")
        param = spec.params.get(name)
        if param is None:
            hint = did_you_mean(name, spec.params)
            message = f"the spec has no parameter {name!r}" + (f" ({hint})" if hint else "")
            raise click.BadParameter(message, param_hint="--set")
        values[name] = _value(param, text)
    return values


def _value(param: Param, text: str) -> Scalar:
    if param.type == "str":
        return text
    if param.type == "bool" and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if param.type == "int" and text.isascii() and text.isdigit():
        return int(text)
    kind = "a number from 0 up" if param.type == "int" else "true or false"
    raise click.BadParameter(f"{param.name} needs {kind}, not {text!r}", param_hint="--set")
