"""Theorem 1: the graph is acyclic for every count (paper section 3.3, proof in section 8).

Every expansion is acyclic iff in each strongly connected component of the template
graph all cycles have a strictly positive index sum, or all a strictly negative one:
then the replicas can be run in ascending (descending) order of index.  Where the sums
have both signs, or one is zero, some closed walk has sum zero, and it is a cycle once
there are enough replicas.  A cycle through ``x.*.S`` is one at any count that is large
enough.  An edge from one fixed replica (``x[0].S``) fits an ascending order only; this
is sound, and refuses a little more than it must.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from cfac.compiler.graph import Edge, Graph, Node
from cfac.compiler.scc import potentials, strongly_connected, topological_order

Direction = Literal["none", "up", "down"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the witness.

    Direction ``none``: one node, all its replicas in any order.  ``up``: for i = 0, 1, …
    the replica ``i - shift`` of each member in turn, those out of range left out (a
    member that is not replicated has index 0).  ``down``: for i = n-1, n-2, … the
    replica ``i + shift``.
    """

    members: tuple[tuple[int, int], ...]
    direction: Direction = "none"


@dataclass(slots=True)
class Proof:
    """The outcome: a topological order of steps, or the components that are cyclic."""

    steps: list[Step] = field(default_factory=list)
    cyclic: list[list[int]] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether Theorem 1 applies: every expansion is acyclic."""
        return not self.cyclic


def prove(graph: Graph) -> Proof:
    """Prove that ``graph`` is acyclic for every count, or find the components that are not."""
    successors = graph.successors()
    names: dict[str, int] = {}
    together = [names.setdefault(node.name, len(names)) for node in graph.nodes]
    order = topological_order(successors, together)
    if order is not None:  # acyclic even if all replicas were one: nothing more to prove
        return Proof([Step(((node, 0),)) for node in order])
    components = strongly_connected(successors)
    number = [0] * len(graph.nodes)
    for place, members in enumerate(components):
        for member in members:
            number[member] = place
    inner: dict[int, list[Edge]] = {}
    between: list[list[int]] = [[] for _ in components]
    for edge in graph.edges:
        place = number[edge.source]
        if place == number[edge.target]:
            inner.setdefault(place, []).append(edge)
        else:
            between[place].append(number[edge.target])
    proof = Proof()
    solved: dict[int, Step] = {}
    for place in sorted(inner, key=lambda place: min(components[place])):
        step = _order(graph, sorted(components[place]), inner[place])
        if step is None:
            proof.cyclic.append(sorted(components[place]))
        else:
            solved[place] = step
    if proof.cyclic:
        return proof
    # Renumber the components by their first node, so that the order follows the spec.
    rank = sorted(range(len(components)), key=lambda place: min(components[place]))
    position = {place: i for i, place in enumerate(rank)}
    names.clear()
    together = [
        names.setdefault(graph.nodes[min(components[place])].name, len(names)) for place in rank
    ]
    order = topological_order([[position[t] for t in between[place]] for place in rank], together)
    assert order is not None  # components form a DAG
    for i in order:
        place = rank[i]
        proof.steps.append(solved.get(place) or Step(((components[place][0], 0),)))
    return proof


def ascending(graph: Graph, edge: Edge) -> int | None:
    """By how much the index grows along ``edge`` at least; None if there is no bound.

    Nodes that are not symbolic count as index 0.
    """
    source, target = graph.nodes[edge.source], graph.nodes[edge.target]
    if not edge.wide:
        return -edge.weight
    start = 0
    if source.symbolic:
        if edge.at is None:
            return None
        start = edge.at
    return (edge.low if target.symbolic else 0) - start


def _order(graph: Graph, members: list[int], edges: list[Edge]) -> Step | None:
    """The order of one strongly connected component, or None if it is cyclic."""
    local = {node: place for place, node in enumerate(members)}
    scale = len(members) + 1
    grows = [(local[e.source], local[e.target], ascending(graph, e)) for e in edges]
    rising = [(s, t, d) for s, t, d in grows if d is not None]
    if len(rising) == len(grows):
        position = potentials(len(members), rising)
        if position is not None:
            return _step(graph, members, position, scale, "up")
    # A layout only bounds by how much the index grows.
    if all(not e.wide and e.layout is None and graph.nodes[e.source].symbolic for e in edges):
        position = potentials(len(members), [(s, t, -d) for s, t, d in rising])
        if position is not None:
            return _step(graph, members, position, scale, "down")
    return None


def _step(
    graph: Graph, members: list[int], position: list[int], scale: int, direction: Direction
) -> Step:
    """Members in the order of one round, each with its shift of index."""
    placed = sorted(
        (value % scale, node, value // scale)
        for node, value in zip(members, position, strict=True)
        if graph.nodes[node].state
    )
    least = min(shift for _, _, shift in placed)
    return Step(tuple((node, shift - least) for _, node, shift in placed), direction)


def witness(graph: Graph, proof: Proof) -> list[str]:
    """The steps as text.

    ``core.Ready`` or ``chunk[2].InMem``; ``worker.*.Ready`` for all replicas in any
    order; ``chunk[0..7].InMem`` for these replicas in this order;
    ``for i = 0, 1, …: chunk[i].InMem, chunk[i-1].InGPU`` for replicas that wait for
    their neighbours (an entry whose index is out of range is left out).
    """
    lines: list[str] = []
    names = [node.name for node in graph.nodes]
    ordered = {names[e.source] for e in graph.edges if names[e.source] == names[e.target]}
    steps = [step for step in proof.steps if graph.nodes[step.members[0][0]].state]
    at = 0
    while at < len(steps):
        step = steps[at]
        node = graph.nodes[step.members[0][0]]
        if step.direction != "none":
            lines.append(_rounds(graph, step))
        elif node.symbolic:
            lines.append(f"{node.component}.*.{node.state}")
        else:
            run = _run(graph, steps, at)
            nodes = [graph.nodes[step.members[0][0]] for step in steps[at : at + run]]
            if node.count == run and node.name not in ordered:
                lines.append(f"{node.component}.*.{node.state}")
            else:
                lines.extend(_ranges(nodes))
            at += run
            continue
        at += 1
    return lines


def _run(graph: Graph, steps: list[Step], at: int) -> int:
    """How many steps from ``at`` on are replicas of the same transition."""
    first = graph.nodes[steps[at].members[0][0]]
    end = at + 1
    while end < len(steps) and steps[end].direction == "none":
        node = graph.nodes[steps[end].members[0][0]]
        if node.name != first.name or node.symbolic or not first.state:
            break
        end += 1
    return end - at


def _ranges(nodes: list[Node]) -> Iterator[str]:
    """Replicas of one transition; indices that follow each other as a range."""
    start = 0
    for at, node in enumerate(nodes, 1):
        following = nodes[at].index if at < len(nodes) else None
        if following is not None and node.index is not None and following == node.index + 1:
            continue
        first = nodes[start]
        if at - start > 1:
            yield f"{first.component}[{first.index}..{node.index}].{first.state}"
        else:
            yield first.label()
        start = at


def _rounds(graph: Graph, step: Step) -> str:
    """One step of a component that runs in order of index."""
    up = step.direction == "up"
    names = []
    for number, shift in step.members:
        node: Node = graph.nodes[number]
        if node.symbolic:
            sign = "-" if up else "+"
            index = f"i{sign}{shift}" if shift else "i"
            names.append(node.at(index))
        else:
            names.append(f"{node.label()} (at i = {shift})")
    head = "for i = 0, 1, …: " if up else "for i = n-1, n-2, …: "
    return head + ", ".join(names)
