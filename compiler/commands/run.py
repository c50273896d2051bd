"""``cfac run``: run a spec that is bound to Python callables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from cfac.compiler import api, render


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="PARAM=VALUE", help="Give a parameter.")
def run(spec: Path, settings: tuple[str, ...]) -> None:
    """Run every component of SPEC to its last state.

    The spec's transitions are bound to callables (`run: "module:function"`), looked
    up beside the spec.  Prints where the trace is; exit code 1 if a component failed.
    """
    loaded, diagnostics = api.load(spec)
    if loaded is not None and not diagnostics.errors:
        diagnostics.extend(api.check(loaded).diagnostics)
    render.emit(diagnostics.sorted(), loaded.sources if loaded else None)
    if loaded is None or diagnostics.errors:
        sys.exit(1)

    from cfac.runtime.errors import ChannelError
    from cfac.runtime.executor import run_plan
    from cfac.runtime.plan import Plan

    try:
        plan = Plan.of(api.compile_plan(loaded))
        plan.params.update(_parameters(plan, settings))
        outcome = run_plan(plan, str(spec.resolve().parent))
    except ChannelError as error:
        raise click.ClickException(str(error)) from error
    for component, cause in sorted(outcome.errors.items()):
        click.echo(f"error: {component}: {cause}", err=True)
    click.echo(f"trace: cfac trace show {outcome.run.id}")
    sys.exit(1 if outcome.errors else 0)


def _parameters(plan: Any, settings: tuple[str, ...]) -> dict[str, Any]:
    from cfac.runtime.plan import convert

    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        param = plan.data["params"].get(name)
        if not equals or param is None:
            known = ", ".join(plan.data["params"]) or "none"
            raise click.BadParameter(f"{setting!r} is not PARAM=VALUE (parameters: {known})")
        try:
            values[name] = convert(param, text)
        except ValueError as error:
            raise click.BadParameter(f"{setting!r}: {error}") from error
    return values
