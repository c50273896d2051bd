"""What to say about a cyclic component: its shortest cycle, and from which count on.

The theorem (paper section 3.3) needs a graph that is acyclic for every count; where it
is not, a reader needs one concrete cycle, as short as possible, with the reason of each
of its edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from cfac.compiler.diagnostics import Diagnostic, Note, Span
from cfac.compiler.graph import Edge, Graph, Node
from cfac.compiler.model import BIRTHS
from cfac.compiler.scc import cyclic_components, shortest_cycle, topological_order

#: The search for the smallest cyclic count gives up above this.
MAX_COUNT = 1024
#: A message with more names than this is abbreviated (its notes are not).
MAX_NAMES = 16
#: No unrolled graph of the search has more edges than this.
MAX_EDGES = 400_000


@dataclass(slots=True)
class Unrolled:
    """Part of a template graph for given counts: ``nodes`` are (node, index) pairs."""

    nodes: list[tuple[int, int | None]] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    edges: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle: (node, index) pairs, ``edges[k]`` leads from the k-th to the next.

    ``counts`` are the smallest counts at which it exists; empty if one replica of each
    is enough, None if no such counts were found: the check refuses more than it must.
    """

    nodes: tuple[tuple[int, int | None], ...]
    edges: tuple[int, ...]
    counts: Mapping[str, int] | None


def count_key(node: Node) -> str:
    """The name under which a symbolic node's count is varied."""
    return node.count if isinstance(node.count, str) else f"{node.component} (replicas)"


def unroll(
    graph: Graph,
    counts: Mapping[str, int],
    nodes: Iterable[int] | None = None,
    edges: Iterable[int] | None = None,
) -> Unrolled:
    """The template ``graph`` for given counts (by `count_key`), or the given part of it.

    A quotient is unrolled from its base, so that its edges are those of real replicas.
    """
    result = Unrolled()
    base = graph.base or graph
    ids: dict[tuple[int, int | None], int] = {}

    def size(number: int) -> int | None:
        node = base.nodes[number]
        if not node.symbolic:
            return None
        count = counts[count_key(node)]
        return min(count, node.count) if isinstance(node.count, int) else count

    def place(number: int, index: int | None) -> int:
        if graph.base is not None:
            number = graph.number[number]
        key = number, index if graph.nodes[number].symbolic else None
        if key not in ids:
            ids[key] = len(result.nodes)
            result.nodes.append(key)
            result.successors.append([])
        return ids[key]

    inside = set(range(len(graph.nodes)) if nodes is None else nodes)
    for number in range(len(base.nodes)):
        if (graph.number[number] if graph.base is not None else number) in inside:
            count = size(number)
            for index in [None] if count is None else range(count):
                place(number, index)
    for at in range(len(graph.edges)) if edges is None else edges:
        edge = base.edges[graph.origin[at]] if graph.base is not None else graph.edges[at]
        for source, target in _pairs(edge, size(edge.source), size(edge.target)):
            pair = place(edge.source, source), place(edge.target, target)
            if pair not in result.edges and (graph.base is None or pair[0] != pair[1]):
                result.edges[pair] = at
                result.successors[pair[0]].append(pair[1])
    return result


def _pairs(
    edge: Edge, before: int | None, after: int | None
) -> list[tuple[int | None, int | None]]:
    """The replicas that ``edge`` relates, for the counts of its source and its target."""
    sources: list[int | None] = [None]
    targets: list[int | None] = [None]
    if after is not None:
        targets = list(range(edge.low, after))
    if before is not None:
        if not edge.wide:
            shifted = ((t + edge.weight, t) for t in range(after or 0))
            return [(s, t) for s, t in shifted if 0 <= s < before]
        sources = list(range(before))
        if edge.at is not None:
            sources = sources[edge.at : edge.at + 1]
    return [(s, t) for t in targets for s in sources]


def _count_keys(graph: Graph, members: Iterable[int]) -> list[str]:
    """The counts on which this part of the graph depends."""
    base = graph.base or graph
    inside = set(members)
    return sorted(
        {
            count_key(node)
            for number, node in enumerate(base.nodes)
            if node.symbolic
            and (graph.number[number] if graph.base is not None else number) in inside
        }
    )


def find_cycle(graph: Graph, members: list[int]) -> Cycle:
    """The shortest cycle of a cyclic component, at the smallest counts that have one."""
    inside = dict.fromkeys(members)
    edges = [
        at for at, edge in enumerate(graph.edges) if edge.source in inside and edge.target in inside
    ]
    keys = _count_keys(graph, members)
    counts = _smallest(graph, inside, edges, keys)
    if counts is None:
        successors: list[list[int]] = [[] for _ in graph.nodes]
        by_pair = {(graph.edges[at].source, graph.edges[at].target): at for at in edges}
        for source, target in by_pair:
            successors[source].append(target)
        path = shortest_cycle(successors, members)
        following = [*path[1:], path[0]]
        steps = tuple(by_pair[pair] for pair in zip(path, following, strict=True))
        return Cycle(tuple((n, None) for n in path), steps, None)
    part = unroll(graph, counts, inside, edges)
    tangled = [n for members in cyclic_components(part.successors) for n in members]
    path = shortest_cycle(part.successors, tangled)
    steps = tuple(part.edges[pair] for pair in zip(path, [*path[1:], path[0]], strict=True))
    needed = {} if all(n == 1 for n in counts.values()) else counts
    return Cycle(tuple(part.nodes[n] for n in path), steps, needed)


def _smallest(
    graph: Graph, nodes: Iterable[int], edges: list[int], keys: list[str]
) -> dict[str, int] | None:
    """The smallest counts at which this part is cyclic; expansions only grow with counts."""

    def cyclic(counts: Mapping[str, int]) -> bool:
        part = unroll(graph, counts, nodes, edges)
        return topological_order(part.successors) is None

    def least(high: int, at: Callable[[int], Mapping[str, int]]) -> int:
        low = 0
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if cyclic(at(middle)) else (middle, high)
        return high

    base = graph.base or graph
    real = [base.edges[graph.origin[at]] if graph.base else graph.edges[at] for at in edges]
    wide = any(edge.wide and base.nodes[edge.source].symbolic for edge in real)
    high = 1
    while not cyclic(dict.fromkeys(keys, high)):
        high *= 2
        work = len(edges) * high * (high if wide else 1)
        if not keys or high > MAX_COUNT or work > MAX_EDGES:
            return None
    high = least(high, lambda n: dict.fromkeys(keys, n))
    counts = dict.fromkeys(keys, high)
    if len(keys) > 1:
        for key in keys:
            counts[key] = least(high, lambda n, key=key: {**counts, key: n})  # type: ignore[misc]
    return counts


def label(graph: Graph, cycle: Cycle, at: int) -> str:
    """The name of the cycle's transition number ``at``."""
    node, index = cycle.nodes[at % len(cycle.nodes)]
    return graph.nodes[node].label(index if cycle.counts else None)


def chain_text(names: list[str]) -> str:
    """``a after c after b after a`` for a cycle a, b, c; the middle of a long one is left out."""
    words = [names[0], *reversed(names[1:]), names[0]]
    if len(words) > MAX_NAMES:
        words[5:-5] = [f"… {len(words) - 10} more …"]
    return " after ".join(words)


def edge_note(graph: Graph, at: int, source: str, target: str) -> Note:
    """One edge with its position and the reason for it."""
    edge = graph.edges[at]
    if edge.kind == "own":
        return Note(f"{target} comes after {source}: own order of its component", edge.span)
    if edge.kind in BIRTHS:
        return Note(f"{target} comes after {source}: {edge.reason}", edge.span)
    extra = []
    if edge.ref is not None and not source.startswith(str(edge.ref)):
        extra.append(f"after {edge.ref}")
    if edge.kind == "ring" and not (edge.reason or "").startswith("ring of"):
        extra.append("ring")
    if edge.schedule:
        extra.append("schedule")
    more = f" ({', '.join(extra)})" if extra else ""
    reason = f": {edge.reason}" if edge.reason else ""
    return Note(f"{target} waits for {source}{more}{reason}", edge.span)


def describe(graph: Graph, cycle: Cycle, suspects: Callable[[Edge], bool]) -> Diagnostic:
    """The diagnostic CF301, or CF610 where a bounded ring is too small for a layout.

    ``suspects`` says which edges the chain contradicts: the help names those first.
    """
    size = len(cycle.nodes)
    shown = [k for k in range(size) if graph.nodes[cycle.nodes[k][0]].state]
    names = [label(graph, cycle, k) for k in shown]
    notes: list[Note] = []
    edges: list[Edge] = []
    for place, k in enumerate(shown):
        at = cycle.edges[k]
        edges.append(graph.edges[at])
        notes.append(edge_note(graph, at, names[place], names[(place + 1) % len(names)]))
    message = f"cycle: {chain_text(names)}"
    if cycle.counts:
        message += "; first cyclic with " + ", ".join(f"{k} = {v}" for k, v in cycle.counts.items())
    elif cycle.counts is None:
        message += (
            "; every index is taken to be possible here: a wait for one fixed replica, or a "
            "literal count related to a parameter by an offset, cannot be told apart in a cycle"
        )
    ring = next((e for e in edges if e.kind == "ring"), None)
    span, help_ = _advice(edges, suspects)
    if ring is not None and any(e.layout for e in edges):
        size = -int(ring.ref.index.value or 0) if ring.ref else 0
        return Diagnostic(
            "CF610",
            "error",
            f"the ring of {size} is too small for this layout: {message}",
            ring.span,
            tuple(notes),
            "make the ring larger than the widest span, or split the wait by pieces so that a "
            "buffer is released when its own part is copied out",
        )
    return Diagnostic("CF301", "error", message, span, tuple(notes), help_)


def words(edge: Edge) -> str:
    """How the spec writes an edge's reference: ``after: core.Ready``, ``fork: core.Ready``."""
    return f"{edge.kind if edge.kind in BIRTHS else 'after'}: {edge.ref}"


def _advice(edges: list[Edge], suspects: Callable[[Edge], bool]) -> tuple[Span | None, str]:
    """Which ``after`` to look at first."""
    waits = [edge for edge in edges if edge.ref is not None]
    assert waits  # a component's own order alone is no cycle
    chosen = [edge for edge in waits if suspects(edge)]
    if chosen:
        edge = chosen[0]
        return edge.span, f"look at `{words(edge)}`: the chain has the opposite order"
    if len(waits) == 1 and waits[0].kind in BIRTHS:
        where = "from" if waits[0].kind == "fork" else "at"
        return waits[0].span, f"{waits[0].kind} before {waits[0].ref}, {where} an earlier state"
    if len(waits) == 1:
        return waits[0].span, f"remove `after: {waits[0].ref}`, or wait for an earlier state"
    for edge in waits:
        if edge.schedule:
            return edge.span, f"look at `{words(edge)}`: it is only there for speed (schedule)"
    places = ", ".join(f"`{words(edge)}` (line {edge.ref.span.line})" for edge in waits
                       if edge.ref)  # fmt: skip
    return waits[0].span, f"remove one of {places}, or let it wait for an earlier state"
