"""``cfac explain`` and ``cfac schema``."""

from __future__ import annotations

import json

import click

from cfac.compiler.diagnostics import did_you_mean
from cfac.compiler.explanations import codes, load_explanation


@click.command()
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """Explain a diagnostic's CODE with a bad and a good example; without one, list all."""
    if code is None:
        for known in codes():
            found = load_explanation(known)
            if found is not None:
                click.echo(f"{found.code}  {found.title}")
        return
    wanted = code.upper()
    found = load_explanation(wanted)
    if found is None:
        hint = did_you_mean(wanted, codes())
        message = f"there is no diagnostic {code!r}" + (f" ({hint})" if hint else "")
        raise click.BadParameter(message, param_hint="CODE")
    click.echo(found.text, nl=False)


@click.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    from cfac.compiler.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
