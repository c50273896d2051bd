"""Longest paths in an integer-indexed graph (paper section 4.1: T_CFA is the longest path).

Each pass is linear in nodes and edges; what a single node or edge is to blame for is
found for all of them in one sweep, O((nodes + edges) log edges).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True)
class Dag:
    """Edge ``e`` leads from ``sources[e]`` to ``targets[e]``; several may be parallel.

    ``order`` is the topological order that prefers low numbers' turns (Kahn), and is
    shorter than ``count`` if there is a cycle.
    """

    count: int
    sources: list[int]
    targets: list[int]
    out: list[list[int]] = field(init=False)
    into: list[list[int]] = field(init=False)
    order: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.out = [[] for _ in range(self.count)]
        self.into = [[] for _ in range(self.count)]
        for edge, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            self.out[source].append(edge)
            self.into[target].append(edge)
        missing = [len(edges) for edges in self.into]
        self.order = [node for node in range(self.count) if not missing[node]]
        for node in self.order:  # grows while it is walked
            for edge in self.out[node]:
                target = self.targets[edge]
                missing[target] -= 1
                if not missing[target]:
                    self.order.append(target)


def ends(dag: Dag, costs: Sequence[int], without: Collection[int] = ()) -> list[int]:
    """When each node ends at the earliest; edges in ``without`` are left out."""
    found = [0] * dag.count
    sources = dag.sources
    for node in dag.order:
        begin = 0
        for edge in dag.into[node]:
            end = found[sources[edge]]
            if end > begin and edge not in without:
                begin = end
        found[node] = begin + costs[node]
    return found


def tails(dag: Dag, costs: Sequence[int]) -> list[int]:
    """The longest path from each node's begin to the end of everything."""
    found = [0] * dag.count
    targets = dag.targets
    for node in reversed(dag.order):
        rest = 0
        for edge in dag.out[node]:
            tail = found[targets[edge]]
            if tail > rest:
                rest = tail
        found[node] = rest + costs[node]
    return found


def critical_path(
    dag: Dag, ends: Sequence[int], costs: Sequence[int], own: Collection[int]
) -> list[tuple[int, int | None]]:
    """A longest path: (node, the edge that it waited for last), from its first node on.

    Of equals the edges in ``own`` come first (the component did not wait), then low numbers.
    """
    if not dag.count:
        return []
    node = max(range(dag.count), key=lambda n: (ends[n], -n))
    path: list[tuple[int, int | None]] = []
    while True:
        begin = ends[node] - costs[node]
        tight = [edge for edge in dag.into[node] if ends[dag.sources[edge]] == begin]
        if not tight:
            path.append((node, None))
            return path[::-1]
        edge = min(tight, key=lambda e: (e not in own, e))
        path.append((node, edge))
        node = dag.sources[edge]


@dataclass(slots=True)
class Falls:
    """How much the total falls: without a node's cost, without an edge."""

    nodes: list[int]
    edges: list[int]


def falls(dag: Dag, costs: Sequence[int], ends: Sequence[int], tails: Sequence[int]) -> Falls:
    """For every single node and edge, how much sooner all would be over without it.

    A path that avoids the node at place p of the topological order either lies on one
    side of p, or crosses p by exactly one edge; and the longest path through an edge that
    crosses p avoids it.  The same holds for the cut just behind an edge's source.  So the
    longest edges across each place are all that is needed.
    """
    total = max(ends, default=0)
    result = Falls([0] * dag.count, [0] * len(dag.sources))
    place = [0] * dag.count
    for at, node in enumerate(dag.order):
        place[node] = at
    after = [0] * (dag.count + 1)  # the longest path that lies at this place or later
    for at in range(dag.count - 1, -1, -1):
        after[at] = max(after[at + 1], tails[dag.order[at]])
    before = 0  # the longest path that ended before this place
    heap: list[tuple[int, int, int]] = []  # -length, place of the end, edge

    def longest(at: int, but: int = -1) -> int:
        """The longest edge from before or at ``at`` to beyond it, ``but`` one."""
        while heap and heap[0][1] <= at:
            heappop(heap)
        if not heap:
            return 0
        if heap[0][2] != but:
            return -heap[0][0]
        kept = heappop(heap)
        length = longest(at)
        heappush(heap, kept)
        return length

    for at, node in enumerate(dag.order):
        through = ends[node] + tails[node] - costs[node]
        if through == total and costs[node]:
            rest = max(before, after[at + 1], longest(at), total - costs[node])
            result.nodes[node] = total - rest
        before = max(before, ends[node])
        tight: list[int] = []
        for edge in dag.out[node]:
            length = ends[node] + tails[dag.targets[edge]]
            heappush(heap, (-length, place[dag.targets[edge]], edge))
            if length == total:
                tight.append(edge)
        for edge in tight:
            result.edges[edge] = total - max(before, after[at + 1], longest(at, edge))
    return result
