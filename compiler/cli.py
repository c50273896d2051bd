"""The ``cfac`` command; sub-commands are imported when they are used."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

import click


class _Lazy(NamedTuple):
    target: str
    help: str


COMMANDS: dict[str, _Lazy] = {
    "check": _Lazy("cfac.codegen.commands:check", "Report everything that is wrong with a spec."),
    "compile": _Lazy("cfac.codegen.commands:compile_", "Generate the patch, plan and lock."),
    "apply": _Lazy("cfac.codegen.commands:apply", "Apply the patch to an engine's tree."),
    "unapply": _Lazy("cfac.codegen.commands:unapply", "Take the patch out of a tree again."),
    "diff": _Lazy("cfac.codegen.drift_commands:diff", "Compare two specs or two engine trees."),
    "graph": _Lazy("cfac.compiler.commands.graph:graph", "Draw a spec's graph."),
    "analyze": _Lazy("cfac.compiler.commands.analyze:analyze", "Predict how long a start takes."),
    "run": _Lazy("cfac.compiler.commands.run:run", "Run a spec bound to Python callables."),
    "load": _Lazy("cfac.compiler.commands.load:load", "Load safetensors files; print GB/s."),
    "cache": _Lazy("cfac.compiler.commands.cache:cache", "Keep checkpoints in memory."),
    "record": _Lazy(
        "cfac.compiler.commands.record:record", "Record what a start imports, to do it early."
    ),
    "gateway": _Lazy("cfac.compiler.commands.switch:gateway", "One address before servers."),
    "switch": _Lazy("cfac.compiler.commands.switch:switch", "Switch a gateway to another model."),
    "trace": _Lazy("cfac.compiler.commands.trace:trace", "Show or verify the trace of a run."),
    "explain": _Lazy("cfac.compiler.commands.explain:explain", "Explain a diagnostic's code."),
    "schema": _Lazy("cfac.compiler.commands.explain:schema", "Print the spec's JSON Schema."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and imports one when it is invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, in the order of the documentation."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called ``cmd_name``."""
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        module, _, attribute = lazy.target.partition(":")
        command: Any = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add a did-you-mean to click's own message."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from cfac.compiler.diagnostics import did_you_mean

            hint = did_you_mean(args[0], COMMANDS) if args else None
            if hint and "possib" not in error.message and "Did you mean" not in error.message:
                raise click.UsageError(f"{error.message} ({hint})", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from cfac import __version__

        click.echo(f"cfac {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """A declarative startup-graph compiler for LLM inference engines.

    Exit codes: 0 fine, 1 errors in the spec or the engine's match, 2 usage,
    3 generated files out of date.
    """


def main() -> None:
    """The entry point of the ``cfac`` script."""
    try:
        cli(prog_name="cfac")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


if __name__ == "__main__":
    main()
