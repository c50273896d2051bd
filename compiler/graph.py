"""The template graph: transitions of all components, replicas left symbolic.

Paper section 3.1, read as docs/paper-graphs.md explains: the nodes are *transitions*,
named by the state that they enter; the edges are each component's own order, its
``after`` entries, and the fork with which a forked process begins.  A replicated
component has one node per state whose index ``i`` is unknown; an edge through
``x[i-1].S`` carries the weight -1 (the index of its source minus the index of its target).

Components with a literal count are expanded, one node per replica, so that literal
layouts and bounded rings are checked exactly; unless offsets relate them to components
whose count is a parameter, or they are very many: then they stay symbolic, which can
only add cycles.  What `names` reports (unknown names, initial states, an index that
fits no replica) has no edge here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

from cfac.compiler.diagnostics import Span
from cfac.compiler.model import Component, Dependency, Ref, Spec, State, WaitKind

EdgeKind = Literal["own", "ring", "merge"] | WaitKind

#: Literal counts above this stay symbolic unless a layout lists their replicas.
MAX_LITERAL = 4096
#: ``x.*.S`` with more pairs than this goes through one join node.
MAX_PAIRS = 10_000


@dataclass(frozen=True, slots=True)
class Node:
    """One transition; ``symbolic`` stands for all replicas, ``index`` is one of them.

    ``state`` is empty for a join, which only keeps ``x.*.S`` small.  ``numbered`` by another
    component (``of chunk``), index i stands for all replicas that belong to i there.
    """

    component: str
    state: str
    index: int | None = None
    symbolic: bool = False
    count: int | str | None = None
    aux: bool = False
    numbered: str | None = None

    def label(self, index: int | None = None) -> str:
        """The name as the spec writes it; ``index`` names one replica of a symbolic node."""
        at = self.index if index is None else index
        if at is not None:
            return self.at(str(at))
        return self.at("i") if self.symbolic else self.name

    def at(self, index: str) -> str:
        """The name with an index, as in ``chunk[i-1].InMem`` or ``piece[of chunk i-1].Copied``."""
        of = "" if self.numbered is None else f"{self.numbered} "
        return f"{self.component}[{of}{index}].{self.state}"

    @property
    def name(self) -> str:
        """``component.State`` without an index."""
        return f"{self.component}.{self.state}" if self.state else self.component


class Edge(NamedTuple):
    """``target`` waits for ``source``.

    Not ``wide``: the same replica shifted, index(source) = index(target) + weight.
    ``wide``: each target replica (from index ``low`` on) waits for all source replicas,
    or for the one at index ``at``, or for the only one.  ``layout`` is the relation
    if the edge comes from ``x[self.relation].S``.
    """

    source: int
    target: int
    kind: EdgeKind = "own"
    weight: int = 0
    wide: bool = False
    at: int | None = None
    low: int = 0
    schedule: bool = False
    ref: Ref | None = None
    span: Span | None = None
    reason: str | None = None
    layout: str | None = None


@dataclass(slots=True)
class Graph:
    """Nodes and edges; ``ids`` gives the nodes of a (component, state), by replica.

    A quotient (merge) has ``base``, the graph it came from, ``origin``, for each edge the
    index of the edge of ``base`` that it stands for, and ``number``, for each node of
    ``base`` the node that it is part of.
    """

    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    ids: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    base: Graph | None = None
    origin: list[int] = field(default_factory=list)
    number: list[int] = field(default_factory=list)

    def successors(self) -> list[list[int]]:
        """Adjacency lists, weights ignored."""
        result: list[list[int]] = [[] for _ in self.nodes]
        for edge in self.edges:
            result[edge[0]].append(edge[1])
        return result

    def without(self, drop: Iterable[Ref]) -> Graph:
        """This graph without the edges that the given ``after`` references make."""
        gone = {id(ref) for ref in drop}
        if not gone:
            return self
        edges = [edge for edge in self.edges if id(edge.ref) not in gone]
        return Graph(self.nodes, edges, self.ids)


def build(spec: Spec, *, exact: bool = True) -> Graph:
    """The template graph of ``spec``; with ``exact=False`` nothing at all is expanded."""
    graph = Graph()
    concrete = _concrete(spec) if exact else {}
    numbered = {v.component: v.numbered for v in spec.layouts.values() if v.numbered}
    for component in spec.components.values():
        replicas = component.replicas
        count = concrete.get(component.name)
        for state in component.states[1:]:
            first = len(graph.nodes)
            if replicas is None:
                graph.nodes.append(Node(component.name, state.name, aux=state.aux))
            elif count is None:
                of = numbered.get(component.name)
                graph.nodes.append(
                    Node(component.name, state.name, None, True, replicas, state.aux, of)
                )
            else:
                graph.nodes.extend(
                    Node(component.name, state.name, k, False, count, state.aux)
                    for k in range(count)
                )
            graph.ids[component.name, state.name] = list(range(first, len(graph.nodes)))
    for component in spec.components.values():
        for before, state in zip(component.states[1:], component.states[2:], strict=False):
            pairs = zip(
                graph.ids[component.name, before.name],
                graph.ids[component.name, state.name],
                strict=True,
            )
            graph.edges.extend(Edge(s, t, span=state.span) for s, t in pairs)
        for state in component.states[1:]:
            for dependency, kind in component.waits(state):
                _add_after(spec, graph, component, state, dependency, kind)
    return graph


def self_waits(graph: Graph) -> list[Edge]:
    """Edges by which a transition waits for itself, one per ``after`` entry."""
    found: dict[int, Edge] = {}
    for edge in graph.edges:
        if edge.source == edge.target and (edge.wide or edge.weight == 0):
            found.setdefault(id(edge.ref), edge)
    return list(found.values())


def _concrete(spec: Spec) -> dict[str, int]:
    """The components to expand, with their counts."""
    counts: dict[str, int | None] = {}
    for component in spec.components.values():
        if component.replicas is None:
            continue
        mine = [v for (name, _), v in spec.layouts.items() if name == component.name]
        if any(v.symbolic for v in mine):
            counts[component.name] = None
            continue
        lists = [len(v.lists) for v in mine]
        if isinstance(component.replicas, int):
            many = component.replicas > MAX_LITERAL and not lists
            counts[component.name] = None if many else component.replicas
        else:
            counts[component.name] = max(lists) if lists else None
    leader = {name: name for name in counts}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for one, other in _shifted_pairs(spec):
        if one in leader and other in leader:
            leader[find(one)] = find(other)
    symbolic = {find(name) for name, count in counts.items() if count is None}
    return {
        name: count
        for name, count in counts.items()
        if count is not None and (find(name) not in symbolic or _has_layout(spec, name))
    }


def _has_layout(spec: Spec, name: str) -> bool:
    return any(
        component == name and not layout.symbolic for (component, _), layout in spec.layouts.items()
    )


def _shifted_pairs(spec: Spec) -> Iterator[tuple[str, str]]:
    """Components whose replicas are related index by index: offsets, per-replica merges."""
    for component, state in spec.transitions():
        for dependency, _ in component.waits(state):
            if dependency.ref.index.kind == "offset":
                yield component.name, dependency.ref.component
    for group in spec.merges:
        members = [ref.component for ref in group.of if ref.index.kind == "offset"]
        yield from pairwise(members)


class _AddEdge(Protocol):
    """Adds one edge of an ``after`` entry."""

    def __call__(
        self,
        source: int,
        target: int,
        *,
        weight: int = 0,
        wide: bool = False,
        at: int | None = None,
        low: int = 0,
    ) -> None: ...


def _add_after(
    spec: Spec,
    graph: Graph,
    component: Component,
    state: State,
    dependency: Dependency,
    wanted: WaitKind,
) -> None:
    """Add the edges of one ``after`` entry, or of a child's birth."""
    ref = dependency.ref
    sources = graph.ids.get((ref.component, ref.state))
    if not sources:
        return
    targets = graph.ids[component.name, state.name]
    kind, reason = _kind(spec, component, state, dependency)
    kind = kind if wanted == "after" else wanted
    if ref.index.kind in ("none", "all") and len(sources) == 1 == len(targets):
        one, other = graph.nodes[sources[0]], graph.nodes[targets[0]]
        if one.count is None and other.count is None:  # neither has replicas: one plain edge
            graph.edges.append(
                Edge(sources[0], targets[0], kind, 0, False, None, 0, dependency.schedule, ref,
                     ref.span, reason)
            )  # fmt: skip
            return

    def edge(
        source: int,
        target: int,
        *,
        weight: int = 0,
        wide: bool = False,
        at: int | None = None,
        low: int = 0,
    ) -> None:
        layout = str(ref.index.value) if ref.index.kind == "layout" else None
        graph.edges.append(
            Edge(source, target, kind, weight, wide, at, low, dependency.schedule, ref, ref.span,
                 reason, layout)
        )  # fmt: skip

    replicated = spec.components[ref.component].replicas is not None
    symbolic = graph.nodes[sources[0]].symbolic
    waits = bool(targets) and graph.nodes[targets[0]].symbolic
    index = ref.index
    if not replicated and index.kind not in ("none", "all"):
        return
    if index.kind == "all" or not replicated:
        if len(sources) > 1 and len(sources) * len(targets) > MAX_PAIRS and len(targets) > 1:
            join = len(graph.nodes)
            graph.nodes.append(Node(str(ref), "", aux=True))
            for source in sources:
                edge(source, join)
            sources, symbolic = [join], False
        for target in targets:
            for source in sources:
                edge(source, target, wide=symbolic or waits)
    elif index.kind == "at" and isinstance(index.value, int):
        for target in targets:
            _one(graph, sources, index.value, target, edge)
    elif index.kind == "offset" and component.replicas is not None:
        offset = int(index.value or 0)
        if symbolic and waits:
            edge(sources[0], targets[0], weight=offset)
        elif not symbolic and not waits:
            for place, target in enumerate(targets):
                if 0 <= place + offset < len(sources):
                    edge(sources[place + offset], target)
        elif waits:  # a listed component seen from a symbolic one: one index each
            for place, source in enumerate(sources):
                if place - offset >= 0:
                    edge(source, targets[0], wide=True, low=place - offset)
        else:
            for place, target in enumerate(targets):
                if place + offset >= 0:
                    edge(sources[0], target, wide=True, at=place + offset)
    elif index.kind == "layout":
        layout = spec.layouts.get((component.name, str(index.value)))
        if layout is None:
            return
        if waits and symbolic and layout.shift is not None:
            edge(sources[0], targets[0], weight=layout.shift)
        elif waits:
            edge(sources[0], targets[0], wide=True)
        else:
            for target, related in zip(targets, layout.lists, strict=False):
                for place in dict.fromkeys(related):
                    _one(graph, sources, place, target, edge)


def _one(graph: Graph, sources: list[int], place: int, target: int, edge: _AddEdge) -> None:
    """``target`` waits for one replica of the source."""
    first = graph.nodes[sources[0]]
    if place < 0 or (isinstance(first.count, int) and place >= first.count):
        return
    if first.symbolic:
        edge(sources[0], target, wide=True, at=place)
    else:
        edge(sources[place], target, wide=graph.nodes[target].symbolic)


def _kind(
    spec: Spec, component: Component, state: State, dependency: Dependency
) -> tuple[EdgeKind, str | None]:
    """Ring edges are those that wait for a later state of an earlier replica."""
    ref = dependency.ref
    offset = ref.index.value
    if ref.component == component.name and ref.index.kind == "offset" and isinstance(offset, int):
        later = component.position(ref.state) > component.position(state.name)
        if offset < 0 and later:
            return "ring", dependency.reason or f"ring of {-offset}"
    return "after", dependency.reason
