"""Which cost each transition has, and from where (docs/analyze.md, "Costs").

In order of precedence: the command line, the recorded runs, the spec's ``cost``, else 0.

A recorded stock run has no auxiliary states.  What an auxiliary state *does* is done there
on the way to the stock transition that follows, so it takes its part of the time recorded
for that: the cost it is given, else all of it.  Where that transition has a begin of its
own, the time is what lies before the begin, without the waits, and the transition keeps
its cost; else it is the transition's cost, and the transition keeps the remainder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cfac.compiler.aliases import inherited
from cfac.compiler.analyze.network import Network
from cfac.compiler.analyze.recorded import Recorded
from cfac.compiler.analyze.select import NS
from cfac.compiler.expand import Expanded, Transition
from cfac.compiler.model import Component, Spec, State

#: ``taken``: out of the following stock transition's; ``left``: what that one keeps.
Source = Literal["set", "run", "taken", "left", "spec", "inherited", "none"]


@dataclass(slots=True)
class Costs:
    """Costs in ns per transition of the expanded graph; ``groups`` per network node.

    ``stock`` is what the chain pays for a stock transition: its own cost, and that of what
    the auxiliary states before it do.
    """

    own: list[int]
    stock: list[int]
    sources: list[Source]
    groups: dict[int, int] = field(default_factory=dict)

    def of_nodes(self, network: Network) -> list[int]:
        """The cost of each node; a merged group takes as long as its members together."""
        own = self.own
        found = [
            own[members[0]] if len(members) == 1 else sum(own[n] for n in members)
            for members in network.members
        ]
        for node, cost in self.groups.items():
            found[node] = cost
        return found

    def source(self, network: Network, node: int) -> Source:
        """Where a node's cost comes from; of a group, the first of its members' that is known."""
        if node in self.groups:
            return "set"
        known = [self.sources[n] for n in network.members[node]]
        return next((source for source in known if source != "none"), "none")


def assign(
    spec: Spec, expanded: Expanded, recorded: Recorded | None, settings: Mapping[int, int]
) -> Costs:
    """The costs of all transitions; ``settings`` are those of the command line."""
    count = len(expanded.transitions)
    costs = Costs([0] * count, [0] * count, ["none"] * count)
    chosen: dict[tuple[str, int | None], list[int]] = {}
    for node, transition in enumerate(expanded.transitions):
        chosen.setdefault((transition.component, transition.index), []).append(node)
    for (name, _), nodes in chosen.items():
        _assign_component(spec.components[name], nodes, expanded, recorded, settings, costs)
    return costs


def _does(state: State) -> bool:
    """Whether the state is auxiliary and does what the stock engine does elsewhere."""
    return state.aux and state.works and state.idle_while is None


def _assign_component(
    component: Component,
    nodes: list[int],
    expanded: Expanded,
    recorded: Recorded | None,
    settings: Mapping[int, int],
    costs: Costs,
) -> None:
    """Walk one replica's transitions in order."""
    by_birth = inherited(component)
    works: list[int] = []  # auxiliary states that do something, since the last stock state
    loose: list[int] = []  # those of them that no run recorded
    for state, node in zip(component.states[1:], nodes, strict=True):
        measured = recorded.cost(expanded.transitions[node]) if recorded else None
        _give(costs, node, settings.get(node), measured, state.cost)
        if state.aux:
            if _does(state):
                works.append(node)
                if measured is None:
                    loose.append(node)
            continue
        if measured is not None and loose and recorded is not None:
            lead = recorded.lead(expanded.transitions[node])
            left = _share(costs, loose, measured if lead is None else lead)
            if lead is None and node not in settings:
                costs.own[node], costs.sources[node] = left, "left"
        costs.stock[node] = costs.own[node] + sum(costs.own[work] for work in works)
        if state in by_birth and node not in settings:
            costs.own[node], costs.sources[node] = 0, "inherited"
        works, loose = [], []


def _give(
    costs: Costs, node: int, setting: int | None, measured: int | None, declared: float | None
) -> None:
    if setting is not None:
        costs.own[node], costs.sources[node] = setting, "set"
    elif measured is not None:
        costs.own[node], costs.sources[node] = measured, "run"
    elif declared is not None:
        costs.own[node], costs.sources[node] = round(declared * NS), "spec"


def _share(costs: Costs, loose: list[int], time: int) -> int:
    """Give works that no run recorded their part of ``time``; returns what is left."""
    left = max(0, time - sum(costs.own[node] for node in loose))
    for node in loose:
        if costs.sources[node] == "none":
            costs.own[node], costs.sources[node] = left, "taken"
            left = 0
    return left


def missing(expanded: Expanded, costs: Costs, covered: Collection[int]) -> list[str]:
    """The transitions without any cost: all replicas of one as ``worker.*.Ready``.

    Those in ``covered`` need none.
    """
    kinds: dict[tuple[str, str, bool], list[Transition]] = {}
    known: set[tuple[str, str, bool]] = set()
    for node, transition in enumerate(expanded.transitions):
        key = transition.component, transition.state, transition.index is not None
        if costs.sources[node] == "none" and node not in covered:
            kinds.setdefault(key, []).append(transition)
        else:
            known.add(key)
    names: list[str] = []
    for key, found in kinds.items():
        if key in known or not key[2]:
            names += [str(transition) for transition in found]
        else:
            names.append(f"{key[0]}.*.{key[1]}")
    return names
