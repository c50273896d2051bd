"""The gateway's state file: what it served, and the switch that it was at, when it ended.

A gateway that is killed leaves servers behind: the old model's, the new one's, or both.  The
next one in the same folder reads here what was to become of them:

- no switch: the server goes on serving;
- a switch in which the old model was not told to stop: the old one goes on serving, what
  there is of the new one is ended;
- one in which it was told, or is gone, or that was the first start: there is no way back.
  What there is of both is ended, and the new model started.

Written anew as a whole at each of these points (rename(2)), before what it says is done.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from cfac.runtime.errors import ChannelError
from cfac.runtime.switching.engines import Engine, Server


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A switch that was under way: to which server, and its engine where that still lives."""

    server: Server
    engine: Engine | None
    told: bool


@dataclass(frozen=True, slots=True)
class Known:
    """What the file says.  ``problem``: what of it is not so any more, for people."""

    served: Engine | None = None
    unfinished: Unfinished | None = None
    problem: str = ""


def save(path: str, served: Engine | None, unfinished: Unfinished | None) -> None:
    """Write the file.  OSError if that cannot be."""
    data: dict[str, Any] = {"served": served.describe() if served else None, "switch": None}
    if unfinished is not None:
        engine = unfinished.engine
        data["switch"] = {
            "to": unfinished.server.describe(),
            "engine": engine.describe() if engine else None,
            "told": unfinished.told,
        }
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(data, file)
    os.replace(f"{path}.new", path)


def load(path: str) -> Known:
    """Read the file; an engine that is gone is left out, and named in ``problem``."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        known, switch = data["served"], data["switch"]
        served, problem = _engine(known)
        unfinished = None
        if switch is not None:
            engine, _ = _engine(switch["engine"])
            unfinished = Unfinished(_server(switch["to"]), engine, bool(switch["told"]))
    except FileNotFoundError:
        return Known()
    except (OSError, ValueError, TypeError, KeyError) as error:
        return Known(problem=f"{path}: {error!r}")
    return Known(served, unfinished, problem)


def _engine(known: dict[str, Any] | None) -> tuple[Engine | None, str]:
    """The engine of a description, and why there is none."""
    if known is None:
        return None, ""
    try:
        return Engine.adopt(_server(known), known["pid"], known["born"]), ""
    except ChannelError as error:
        return None, str(error)


def _server(known: dict[str, Any]) -> Server:
    return Server(known["model"], known["url"], tuple(known["command"]))
