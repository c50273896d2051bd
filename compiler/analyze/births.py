"""When processes begin: the orders that the graph itself does not have.

A fork, or a prespawn at a state, is an edge of the graph already.  What is added here:

- a child that is there as soon as its parent is (a bare ``prespawn``) begins when that one
  does, after whatever the parent's own birth came after;
- what the engine starts by itself begins where its control flow starts it.  The chain says
  where: after the last transition of the spawning component that stands in an earlier
  class than the child's first stock transition.  A process that is there early goes through
  its birth states before that, and on when the engine comes to start it.

A spec without ``engine`` is run by ``cfac run``, which starts everything at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal, NamedTuple

from cfac.compiler.expand import Expanded, Transition, count_of
from cfac.compiler.model import BIRTHS, Component, Spec, WaitKind
from cfac.compiler.schedule_checks import born_with

Kind = Literal["own", "start"] | WaitKind


class Link(NamedTuple):
    """``target`` comes after ``source``, both transitions of the expanded graph.

    ``of`` is the reference as the spec has it, empty for a component's own order.
    ``start``: there the engine starts the process.
    """

    source: int
    target: int
    kind: Kind
    of: str


def declared(graph: Expanded) -> list[Link]:
    """The edges of the expanded graph."""
    return [
        Link(edge.source, edge.target, edge.kind, "" if edge.ref is None else str(edge.ref))
        for edge in graph.edges
    ]


def births(
    spec: Spec, graph: Expanded, counts: Mapping[str, int], absent: Collection[str]
) -> list[Link]:
    """The orders to add to the declared ones."""
    return list(_Births(spec, graph, counts, absent).links())


class _Births:
    def __init__(
        self, spec: Spec, graph: Expanded, counts: Mapping[str, int], absent: Collection[str]
    ) -> None:
        self.spec, self.graph, self.counts = spec, graph, counts
        self.present = {c.name: c for c in spec.components.values() if c.name not in absent}
        self.classes: dict[tuple[str, str], int] = {}
        for number, members in enumerate(spec.chain):
            for ref in members:
                self.classes.setdefault((ref.component, ref.state), number)
        self.given: dict[int, list[Link]] = {}
        for link in declared(graph):
            if link.kind in BIRTHS:
                self.given.setdefault(link.target, []).append(link)

    def links(self) -> Iterator[Link]:
        """All of them."""
        for component in self.present.values():
            if component.process is None or len(component.states) < 2:
                continue
            early = born_with(self.spec, component)
            for place in self._places(component):
                first = self._node(component, place, component.states[1].name)
                if not self.given.get(first):
                    for birth in self._births(component, place, frozenset()):
                        yield birth._replace(target=first)
                later = component.states[1 + len(early) :]
                if component.process.strategy.kind != "engine" and later:
                    node = self._node(component, place, later[0].name)
                    yield from (
                        link._replace(target=node) for link in self._starts(component, place)
                    )

    def _places(self, component: Component) -> list[int | None]:
        count = count_of(self.spec, component, self.counts)
        return [None] if count is None else list(range(count))

    def _node(self, component: Component, place: int | None, state: str) -> int:
        return self.graph.ids[Transition(component.name, place, state)]

    def _births(self, component: Component, place: int | None, seen: frozenset[str]) -> list[Link]:
        """What a component's process begins after."""
        process = component.process
        if process is None or component.name in seen or len(component.states) < 2:
            return []
        given = self.given.get(self._node(component, place, component.states[1].name))
        if given:
            return given
        if process.strategy.kind == "engine":
            starts = self._starts(component, place)
            if starts or self.spec.engine is None:
                return starts
        parent = self._parent(component, place)
        return [] if parent is None else self._births(*parent, seen | {component.name})

    def _starts(self, component: Component, place: int | None) -> list[Link]:
        """Where the engine starts the process; nothing where it is bound nowhere."""
        process = component.process
        parent = self._parent(component, place)
        if process is None or parent is None or self.spec.engine is None:
            return []
        if process.strategy.kind != "engine" and not (process.start or process.context):
            return []
        stock = next((s for s in component.states[1:] if not s.aux), None)
        known = self.classes.get((component.name, stock.name)) if stock is not None else None
        spawner, at = parent
        before = [
            state.name
            for state in spawner.states[1:]
            if known is not None and self.classes.get((spawner.name, state.name), known) < known
        ]
        if not before:
            return []
        index = "" if at is None else "[i]"
        of = f"{spawner.name}{index}.{before[-1]}"
        return [Link(self._node(spawner, at, before[-1]), -1, "start", of)]

    def _parent(
        self, component: Component, place: int | None
    ) -> tuple[Component, int | None] | None:
        """The process that spawns a replica's; None where that is not one."""
        name = component.process.spawned_by if component.process is not None else None
        parent = self.present.get(name or "")
        if parent is None:
            return None
        if parent.replicas is None:
            return parent, None
        return (parent, place) if parent.replicas == component.replicas else None
