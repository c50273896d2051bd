"""``cfac gateway`` and ``cfac switch``: one address before servers that come and go."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import click

from cfac.compiler import api, render

#: Where a gateway is reached if nothing else is said.
_URL = "http://127.0.0.1:8800"


@click.command(short_help="One address before servers of models that are switched.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option("--port", default=8800, show_default=True, help="Listen on this port.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    default="cfac-gateway",
    show_default=True,
    help="For the state, the history of switches, and the servers' output.",
)
@click.option("--serve", metavar="COMMAND", help="Start this server, as a first switch.")
@click.option("--pid", type=int, help="The server of --serve runs already, as this process.")
@click.option("--model", help="The model that --serve serves, if its command does not say.")
@click.option("--url", help="Where it serves, if its command does not say.")
@click.option(
    "--spec",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The servers' engines are patched with this spec: start the new model while the old "
    "one serves. Without it, the old one is stopped first.",
)
def gateway(
    host: str,
    port: int,
    folder: str,
    serve: str | None,
    pid: int | None,
    model: str | None,
    url: str | None,
    spec: Path | None,
) -> None:
    """Hand requests to the server of the model that they name, and switch models.

    A request for the coming model waits for it. `cfac switch` begins a switch; GET
    /cfac/status tells what is served. The servers outlive the gateway: started again in the
    same folder, it finds the one that served. Needs `pip install cfac[gateway]`.
    """
    try:
        from aiohttp import web
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: pip install 'cfac[gateway]'") from error
    from cfac.runtime.errors import ChannelError
    from cfac.runtime.switching.engines import Engine, Server
    from cfac.runtime.switching.gateway import Gateway

    plan = _plan(spec) if spec is not None else None
    if (pid is not None or model or url) and not serve:
        raise click.UsageError("--pid, --model and --url say more of --serve")

    async def application() -> web.Application:
        door = Gateway(folder, plan)
        if serve:
            server = Server.of(serve, model, url)
            if pid is not None:
                door.engine = Engine.adopt(server, pid)
            else:
                door.begin_with(server)
        return door.app()

    where = f"http://{host}:{port}"
    click.echo(f"{where} (folder {folder}; {'overlapping' if plan else 'stop first, then start'})")
    try:
        web.run_app(
            application(), host=host, port=port, print=None, handler_cancellation=True,
            shutdown_timeout=5.0,
        )  # fmt: skip
    except (ChannelError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _plan(path: Path) -> dict[str, Any]:
    """The plan of the switching spec; exits with 1 where it is wrong."""
    loaded, diagnostics = api.load(path)
    if loaded is not None and not diagnostics.errors:
        diagnostics.extend(api.check(loaded).diagnostics)
    render.emit(diagnostics.sorted(), loaded.sources if loaded else None)
    if loaded is None or diagnostics.errors:
        sys.exit(1)
    for part in ("old", "new", "controller"):
        if part not in loaded.components:
            raise click.ClickException(f"{path} is no switching spec: it has no component {part!r}")
    return api.compile_plan(loaded)


@click.command(short_help="Switch a gateway to another model.")
@click.option("--to", required=True, metavar="COMMAND", help="'vllm serve MODEL --port N …'.")
@click.option(
    "--from",
    "leaving",
    metavar="URL|PID",
    help="The server to leave: refuse if another one serves. If none does, the gateway takes "
    "this one up.",
)
@click.option("--gateway", "address", default=_URL, show_default=True, help="The gateway.")
@click.option("--model", help="The model's name, if the command does not say.")
@click.option("--url", help="Where it will serve, if the command does not say.")
@click.option("--queue", is_flag=True, help="While another switch is under way, wait for it.")
@click.option("--drain", type=float, help="Wait so long for requests in flight, seconds.")
@click.option("--stop", type=float, help="SIGKILL the old server after so long, seconds.")
@click.option("--start", type=float, help="Give the new model so long, seconds.")
@click.option("--old-ranks", type=int, help="Workers of the old engine.")
@click.option("--new-ranks", type=int, help="Workers of the new engine.")
@click.option("--no-restart", is_flag=True, help="Never start the old model again.")
@click.option("--stop-first", is_flag=True, help="Stop the old server, then start the new one.")
def switch(
    to: str,
    address: str,
    leaving: str | None,
    no_restart: bool,
    stop_first: bool,
    **options: Any,
) -> None:
    """Start COMMAND's server behind the gateway, and stop the one that serves.

    Prints what happens, with seconds since the start. Exit code 1 if the new model does
    not serve; the last line says why, and what became of the old one. The switch goes on
    if this command is ended.
    """
    asked = {name: value for name, value in options.items() if value not in (None, False)}
    asked |= {"to": to} | ({"from": leaving} if leaving else {})
    asked |= {"restart_old": False} if no_restart else {}
    asked |= {"overlap": False} if stop_first else {}
    if not address.startswith(("http://", "https://")):
        raise click.BadParameter(f"not an http:// address: {address}", param_hint="--gateway")
    request = urllib.request.Request(  # noqa: S310 (http only, checked above)
        f"{address.rstrip('/')}/cfac/switch",
        data=json.dumps(asked).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            for line in answer:
                event = json.loads(line)
                if event["event"] == "done":
                    _end(event)
                _show(event)
    except urllib.error.HTTPError as error:
        try:
            reason = json.loads(error.read())["error"]["message"]
        except (ValueError, KeyError, TypeError):
            reason = str(error)
        raise click.ClickException(reason) from error
    except OSError as error:
        raise click.ClickException(f"no gateway at {address}: {error}") from error
    raise click.ClickException("the gateway went away; the switch may have failed")


def _show(event: dict[str, Any]) -> None:
    facts = {key: value for key, value in event.items() if key not in ("event", "at")}
    text = " ".join(f"{key}={value}" for key, value in facts.items())
    click.echo(f"{event.get('at', 0):9.3f} s  {event['event']:<10} {text}".rstrip())


def _end(event: dict[str, Any]) -> None:
    if not event["ok"]:
        raise click.ClickException(event["reason"])
    click.echo(f"{event['model']} is served")
    sys.exit(0)
