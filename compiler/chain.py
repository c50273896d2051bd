"""Theorem 2: the stock order agrees with the declared dependencies (paper section 3.3).

``chain`` is the order in which the unmodified engine runs its transitions, as a weak
order: transitions of one class run concurrently already.  With the auxiliary states
projected away, the sequence of each component must be the chain's; and the chain must be
a linear extension of the dependencies, those through auxiliary states included, except
edges marked ``schedule: true``, which are chosen for speed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from cfac.compiler.cycles import edge_note
from cfac.compiler.diagnostics import Diagnostics, Note, Span
from cfac.compiler.graph import Edge, Graph
from cfac.compiler.model import Ref, Spec


@dataclass(slots=True)
class Placing:
    """Where the chain puts each node of the graph: its class and the entry that says so."""

    classes: dict[int, int] = field(default_factory=dict)
    entries: dict[int, Ref] = field(default_factory=dict)

    def contradicts(self, edge: Edge) -> bool:
        """Whether the chain has the opposite order of ``edge``."""
        source, target = self.classes.get(edge.source), self.classes.get(edge.target)
        return source is not None and target is not None and source > target


def place(spec: Spec, graph: Graph, out: Diagnostics) -> Placing:
    """Read the chain; report entries that cannot be there, are missing or occur twice."""
    placing = Placing()
    for number, members in enumerate(spec.chain):
        for ref in members:
            for node in _nodes(spec, graph, ref, out):
                if node not in placing.entries:
                    placing.classes[node] = number
                    placing.entries[node] = ref
                    continue
                out.error(
                    "CF311",
                    f"{graph.nodes[node].label()} is in the chain twice",
                    ref.span,
                    notes=[Note("the first time here", placing.entries[node].span)],
                    help="each stock transition happens once: remove one of the entries",
                )
                break
    spoken = {spec.run_of(ref.component) for rank in spec.chain for ref in rank}
    for component, state in spec.transitions():
        if spec.run_of(component.name) not in spoken:
            continue  # of another run than any that the chain speaks of
        nodes = graph.ids[component.name, state.name]
        missing = [n for n in nodes if n not in placing.classes]
        if state.aux or not missing:
            continue
        name = f"{component.name}.{state.name}"
        if len(missing) < len(nodes):
            name = ", ".join(graph.nodes[n].label() for n in missing[:4])
        out.error(
            "CF310",
            f"the chain does not contain the stock transition {name}",
            state.span,
            notes=[Note("the chain is here", spec.chain_span)],
            help="add it where the unmodified engine runs it, or mark the state `aux: true` "
            "if the unmodified engine has no such state",
        )
    return placing


def _nodes(spec: Spec, graph: Graph, ref: Ref, out: Diagnostics) -> list[int]:
    """The nodes that a chain entry stands for."""
    component, state = spec.components.get(ref.component), spec.state_of(ref)
    if component is None or state is None:
        return []
    if component.position(state.name) == 0:
        out.error(
            "CF313",
            f"{component.name}.{state.name} is an initial state: nothing enters it",
            ref.span,
            notes=[Note("declared here", state.span)],
            help="the chain orders transitions, named by the state they enter: remove the entry",
        )
        return []
    if state.aux:
        out.error(
            "CF312",
            f"{component.name}.{state.name} is auxiliary: the stock engine has no such state",
            ref.span,
            notes=[Note("declared here", state.span)],
            help="remove it from the chain, or drop `aux: true` if the stock engine has it",
        )
        return []
    nodes = graph.ids[component.name, state.name]
    if ref.index.kind in ("none", "all"):
        return nodes
    first = graph.nodes[nodes[0]] if nodes else None
    at = ref.index.value
    if (
        ref.index.kind == "at" and isinstance(at, int) and first is not None
        and not first.symbolic and 0 <= at < len(nodes) and component.replicas is not None
    ):  # fmt: skip
        return [nodes[at]]
    out.error(
        "CF317",
        f"the chain entry {ref} does not name replicas that exist for every count",
        ref.span,
        help=f"write {component.name}.*.{state.name}: all replicas, concurrently in one class",
    )
    return nodes if ref.index.kind == "offset" or (first and first.symbolic) else []


def verify(graph: Graph, placing: Placing, out: Diagnostics, known: Container[int] = ()) -> None:
    """Report each dependency, also through auxiliary states, that the chain does not follow.

    ``known`` holds the ids of references that have been reported as part of a cycle.
    """
    incoming: dict[int, list[int]] = {}
    outgoing: dict[int, list[int]] = {}
    for number, edge in enumerate(graph.edges):
        if not edge.schedule:
            incoming.setdefault(edge.target, []).append(number)
            if graph.nodes[edge.target].aux:
                outgoing.setdefault(edge.source, []).append(number)
    # The last stock transition before each auxiliary node, with the edge that leads there;
    # separately for paths that only follow a component's own order and for all others.
    latest: dict[_Reached, tuple[int, int, bool]] = {}
    for source in sorted(placing.classes, key=lambda n: (-placing.classes[n], n)):
        stack = [(source, False)]
        while stack:
            node, waited = stack.pop()
            for number in outgoing.get(node, ()):
                edge = graph.edges[number]
                reached = edge.target, waited or edge.ref is not None
                if reached not in latest:
                    latest[reached] = source, number, waited
                    stack.append(reached)
    seen: set[tuple[str, str, Span | None]] = set()
    for target in placing.classes:
        for number in incoming.get(target, ()):
            edge = graph.edges[number]
            if id(edge.ref) in known:
                continue
            for source, path in _sources(graph, latest, number, placing):
                own = all(graph.edges[step].ref is None for step in path)
                gap = placing.classes[target] - placing.classes[source]
                if gap > 0 or (own and gap == 0):  # in a class each component keeps its order
                    continue
                names = graph.nodes[source].name, graph.nodes[target].name
                if (*names, edge.span) not in seen:
                    seen.add((*names, edge.span))
                    _report(graph, placing, source, target, path, out)


#: An auxiliary node, and whether the path to it contains a dependency.
_Reached = tuple[int, bool]


def _sources(
    graph: Graph,
    latest: dict[_Reached, tuple[int, int, bool]],
    number: int,
    placing: Placing,
) -> Iterator[tuple[int, list[int]]]:
    """The last stock transitions before an edge's target, each with the path of edges."""
    source = graph.edges[number].source
    if not graph.nodes[source].aux:
        if source in placing.classes:
            yield source, [number]
        return
    for waited in (True, False):
        node, flag, path = source, waited, [number]
        if (node, flag) not in latest:
            continue
        stock = latest[node, flag][0]
        while graph.nodes[node].aux:
            _, step, flag = latest[node, flag]
            path.append(step)
            node = graph.edges[step].source
        yield stock, path[::-1]


def _report(
    graph: Graph, placing: Placing, source: int, target: int, path: list[int], out: Diagnostics
) -> None:
    """CF314 own order, CF315 the chain has the opposite order, CF316 the same class."""
    edges = [graph.edges[number] for number in path]
    before, after = graph.nodes[source], graph.nodes[target]
    here, there = placing.entries[source], placing.entries[target]
    if here is there:
        notes = [Note(f"the chain has all replicas of {before.name} in one class here", here.span)]
    else:
        notes = [
            Note(f"the chain has {here} here", here.span),
            Note(f"and {there} here", there.span),
        ]
    for number in path:
        edge = graph.edges[number]
        symbolic = edge.ref is not None and graph.nodes[edge.source].symbolic
        shown = str(edge.ref) if symbolic else graph.nodes[edge.source].label()
        notes.append(edge_note(graph, number, shown, graph.nodes[edge.target].label()))
    waits = [edge for edge in edges if edge.ref is not None]
    through = [graph.nodes[edge.target] for edge in edges[:-1] if graph.nodes[edge.target].state]
    via = f" (through {', '.join(node.label() for node in through)})" if through else ""
    same = placing.classes[source] == placing.classes[target]
    if not waits:
        out.error(
            "CF314",
            f"the chain does not follow the order of {after.component}: "
            f"{after.state} comes after {before.state}",
            placing.entries[target].span,
            notes=notes,
            help="a component goes through its states in order: move the entry",
        )
        return
    span = waits[-1].span
    if source == target:
        out.error(
            "CF316",
            f"replicas of {after.name} wait for each other{via}, but the chain runs them "
            "concurrently",
            span,
            notes=notes,
            help="mark it `schedule: true` if the order is only chosen for speed",
        )
    elif same:
        out.error(
            "CF316",
            f"{after.label()} waits for {before.label()}{via}, but the chain has both in one class",
            span,
            notes=notes,
            help="split the class in the chain, or mark the wait `schedule: true` if the order "
            "is only chosen for speed",
        )
    else:
        out.error(
            "CF315",
            f"{after.label()} waits for {before.label()}{via}, but in the chain it comes first",
            span,
            notes=notes,
            help="remove the wait, correct the chain, or mark the wait `schedule: true` if the "
            "order is only chosen for speed",
        )
