"""The parts of a plan that belong to different runs, and the engine's calls to each.

Specs that were compiled together may speak of several runs (``channel: {run: joined}``; a
component's ``run`` in the plan).  The engine's *own* run begins at its root's first state and
is found in ``CFAC_RUN``.  A *joined* one was made by another program, a switch by its gateway
(DESIGN section 7), and is found in ``CFAC_SWITCH_RUN``; a process without that variable
passes its places as stock.  What is *local* is no run of the engine's: a loader's channel.

Each part is a plan with hooks of its own: its own session, parameters, table and trace.  So
a process may be in both runs, in one, or in none, and it joins each at the first of its
states there.  Children inherit both variables, by exec, prespawn and fork alike; a forked
child takes its own connections, as ever (runtime/client.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cfac.runtime.run import ENVIRONMENT, SWITCH

if TYPE_CHECKING:
    from cfac.runtime.boot import Hooks

#: kind of run -> the environment variable in which its processes find it
VARIABLES = {"own": ENVIRONMENT, "joined": SWITCH}


def split(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Kind of run -> the plan of what belongs to it; the engine's own is always there."""
    kinds = {name: entry.get("run", "own") for name, entry in data["components"].items()}
    if set(kinds.values()) <= {"own"}:
        return {"own": dict(data)}
    found = {kind for kind in VARIABLES if kind in kinds.values()} or {"own"}
    return {kind: _part(data, {n for n, k in kinds.items() if k == kind}, kind) for kind in found}


def _part(data: Mapping[str, Any], names: set[str], kind: str) -> dict[str, Any]:
    """The plan of some components; of parameters, those that are theirs."""

    def theirs(name: str) -> bool:
        return name.partition(".")[0] in names

    def chosen(entries: Mapping[str, Any]) -> dict[str, Any]:
        return {name: entry for name, entry in entries.items() if theirs(name)}

    part = dict(data)
    components = {name: data["components"][name] for name in data["components"] if name in names}
    part["components"] = {
        name: {key: value for key, value in entry.items() if key != "run"}
        for name, entry in components.items()
    }
    part["transitions"], part["layouts"] = chosen(data["transitions"]), chosen(data["layouts"])
    part["sites"] = chosen(data.get("sites", {}))
    ranks = ([ref for ref in rank if ref["component"] in names] for rank in data["chain"])
    part["chain"] = [rank for rank in ranks if rank]
    part["groups"] = {
        name: group
        for name, group in data["groups"].items()
        if all(ref["component"] in names for ref in group["of"])
    }
    part.pop("refine", None)
    used = _used(components.values(), part["sites"])
    others = _used(
        (entry for name, entry in data["components"].items() if name not in names),
        {name: lists for name, lists in data.get("sites", {}).items() if not theirs(name)},
    )
    part["params"] = {}
    for name, param in data["params"].items():
        at = [place for place in param["at"] if theirs(place)]
        unclaimed = kind == "own" and not param["at"] and name not in others
        if at or name in used or unclaimed:
            part["params"][name] = {**param, "at": at}
    if data["engine"]:
        engine = dict(data["engine"])
        engine["unsupported"] = [
            entry
            for entry in engine.get("unsupported", ())
            if _subjects(entry["when"]) <= part["params"].keys()
        ]
        if kind != "own":
            for key in ("deferred", "remember"):
                engine.pop(key, None)
        part["engine"] = engine
    return part


def _used(components: Iterable[Mapping[str, Any]], sites: Mapping[str, Any]) -> set[str]:
    """The parameters that counts and conditions name."""
    found: set[str] = set()
    for entry in components:
        found |= _subjects(entry["when"])
        if isinstance(entry["replicas"], str):
            found.add(entry["replicas"])
    for conditions in sites.values():
        for condition in conditions:
            found |= _subjects(condition)
    return found


def _subjects(condition: Iterable[list[Any]] | None) -> set[str]:
    tests = (test[0].partition(":") for test in condition or ())
    return {name for kind, _, name in tests if kind == "param"}


#: The calls that name a transition first, and so a component.
_BY_NAME = ("publish", "begin", "wait", "replaced", "take")


class Together:
    """The calls of an engine that may be in two runs: each goes to the run of its component.

    What names no component (deferred work) belongs to the engine's own start, and so do the
    calls that make its processes.
    """

    def __init__(self, own: Hooks, joined: Hooks) -> None:
        self.own, self.joined = own, joined
        self._calls = {call: self._of(call) for call in _BY_NAME}

    def __getattr__(self, call: str) -> Callable[..., Any]:
        """A call of the hooks."""
        found = self._calls.get(call)
        return getattr(self.own, call) if found is None else found

    def _of(self, call: str) -> Callable[..., Any]:
        own, joined = getattr(self.own, call), getattr(self.joined, call)
        theirs = self.joined.plan.components

        def choose(name: str, *arguments: Any, **keywords: Any) -> Any:
            chosen = joined if name.partition(".")[0] in theirs else own
            return chosen(name, *arguments, **keywords)

        return choose
