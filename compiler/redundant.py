"""Waits that other declarations imply already: a transitive reduction, done cautiously.

Reported only where the order holds for every count and every ``when``: components that
may be absent carry no order for others, a neighbour that is out of range carries none
either, and a wait that correctness needs is not implied by one chosen for speed.
"""

from __future__ import annotations

from collections import deque

from cfac.compiler.diagnostics import Diagnostics, Note
from cfac.compiler.graph import Edge, Graph
from cfac.compiler.model import BIRTHS, Condition, Spec
from cfac.compiler.scc import strongly_connected, topological_order

#: ("all",) all replicas, ("at", k) one, ("i", offset) relative to the waiting one, ("one",).
Where = tuple[str, int]
#: Steps after which the search stops; it only ever misses warnings.
WORK_LIMIT = 1_000_000
#: A longer explanation is abbreviated.
MAX_NOTES = 8


def check_redundant(spec: Spec, graph: Graph, out: Diagnostics) -> None:
    """Warn (CF303) of ``after`` entries that the others imply.  ``graph`` is not expanded."""
    search = _Search(spec, graph)
    derived = {layout.component for layout in spec.layouts.values() if layout.derived}
    for number, edge in enumerate(graph.edges):
        if edge.ref is None or edge.kind in BIRTHS or edge.layout is not None:
            continue
        if graph.nodes[edge.target].component in derived:  # nobody wrote it there
            continue
        path = search.implied(number, edge)
        if search.work > WORK_LIMIT:
            return
        if path is None:
            continue
        search.banned.add(number)
        target, ref = graph.nodes[edge.target], edge.ref
        out.warning(
            "CF303",
            f"{target.name} need not wait for {ref}: other waits imply it",
            edge.span,
            notes=_explain(graph, path),
            help="remove it, or keep it if you want the reader to see it",
        )


def _explain(graph: Graph, path: list[Edge]) -> list[Note]:
    """The waits that imply it, source first; the middle of a long way is left out."""
    notes = [
        Note(f"{graph.nodes[e.target].name} comes after {e.ref or graph.nodes[e.source].name}",
             e.span)
        for e in (path if len(path) <= MAX_NOTES else [*path[:3], *path[-3:]])
    ]  # fmt: skip
    if len(path) > MAX_NOTES:
        notes.insert(3, Note(f"and so on, through {len(path) - 6} more"))
    return notes


class _Search:
    """Backward searches from the waiting replica ``i``."""

    def __init__(self, spec: Spec, graph: Graph) -> None:
        self.graph = graph
        self.work = 0
        self.banned: set[int] = set()
        # A topological numbering, later transitions first: it bounds each search.
        self.place = [0] * len(graph.nodes)
        successors = graph.successors()
        order = topological_order(successors)
        if order is not None:
            for place, node in enumerate(reversed(order)):
                self.place[node] = place
        else:
            for place, members in enumerate(strongly_connected(successors)):
                for node in members:
                    self.place[node] = place
        # The edges into each node: number, edge, its source's place, whether replicas are alike.
        self.incoming: list[list[tuple[int, Edge, int, bool]]] = [[] for _ in graph.nodes]
        for number, edge in enumerate(graph.edges):
            if edge.layout is None:
                alike = not edge.wide and edge.weight == 0
                self.incoming[edge.target].append((number, edge, self.place[edge.source], alike))
        self.when = {c.name: _key(c.when) for c in spec.components.values() if c.when is not None}
        for component in spec.components.values():
            replicas = component.replicas
            if replicas == 0:
                self.when[component.name] = f"never {component.name}"

    def implied(self, number: int, wanted: Edge) -> list[Edge] | None:
        """A path that implies edge ``number`` without it, or None."""
        graph = self.graph
        source, target = graph.nodes[wanted.source], graph.nodes[wanted.target]
        shift = wanted.weight if not wanted.wide else 0
        allowed = {self.when.get(source.component), self.when.get(target.component), None}
        goals: set[Where] = {("all", 0)}
        if not source.symbolic:
            goals = {("one", 0)}
        elif wanted.at is not None:
            goals.add(("at", wanted.at))
        elif not wanted.wide:
            goals.add(("i", shift))
        start: tuple[int, Where] = (wanted.target, ("i", 0) if target.symbolic else ("one", 0))
        parent: dict[tuple[int, Where], tuple[tuple[int, Where], int] | None] = {start: None}
        queue = deque([start])
        first = self.place[wanted.source]
        while queue:
            state = queue.popleft()
            here, one = state[1], state[1][0] == "one"
            coming = self.incoming[state[0]]
            self.work += len(coming)
            if self.work > WORK_LIMIT:
                return None
            for other, edge, place, alike in coming:
                if place > first or other == number or other in self.banned:
                    continue
                if edge.schedule and not wanted.schedule:
                    continue
                where = here if alike and one else self._back(edge, here)
                if where is None:
                    continue
                following = edge.source, where
                if following in parent:
                    continue
                if edge.source == wanted.source and where in goals:
                    path = [edge]
                    at = state
                    while (step := parent[at]) is not None:
                        path.append(graph.edges[step[1]])
                        at = step[0]
                    return path
                node = graph.nodes[edge.source]
                if self.when and self.when.get(node.component) not in allowed:
                    continue
                if where[0] == "i" and not self._in_range(edge.source, where[1], wanted, shift):
                    continue
                if where[0] == "at" and not (
                    (isinstance(node.count, int) and where[1] < node.count)
                    or (wanted.at == where[1] and node.count == source.count)
                ):
                    continue
                parent[following] = state, other
                queue.append(following)
        return None

    def _back(self, edge: Edge, where: Where) -> Where | None:
        """Which replicas of the source surely precede those of the target."""
        source = self.graph.nodes[edge.source]
        if not edge.wide:
            if edge.weight == 0 and (edge.kind == "own" or where[0] == "one"):
                return where
            if where[0] == "i":
                return "i", where[1] + edge.weight
            return None
        if where[0] == "all" and not isinstance(self.graph.nodes[edge.target].count, int):
            return None  # there may be none, and then nothing is ordered
        if not source.symbolic:
            return "one", 0
        return ("all", 0) if edge.at is None else ("at", edge.at)

    def _in_range(self, number: int, offset: int, wanted: Edge, shift: int) -> bool:
        """Whether replica i + offset exists whenever both ends of the wanted edge do."""
        nodes = self.graph.nodes
        node, target, source = nodes[number], nodes[wanted.target], nodes[wanted.source]
        if node.count == target.count:
            if offset == 0:
                return True
            if source.symbolic and not wanted.wide and source.count == target.count:
                return min(0, shift) <= offset <= max(0, shift)
        return (
            source.symbolic and not wanted.wide and node.count == source.count and (offset == shift)
        )


def _key(condition: Condition) -> str:
    """A condition as text, without its positions."""
    return repr(sorted((t.subject, t.op, repr(t.value)) for t in condition.tests))
