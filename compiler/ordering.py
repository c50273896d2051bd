"""Which transitions surely come before which, whatever the counts (paper section 3.1).

The search runs on the template graph and claims an order only where it holds for every
count and every ``when`` that lets both ends exist: a neighbour that is out of range
carries no order, nor do an absent component or a set of replicas that may be empty.
When in doubt, nothing is ordered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from cfac.compiler.graph import Edge, Graph
from cfac.compiler.model import Component, Scalar, Spec, Test
from cfac.compiler.scc import strongly_connected

#: Steps after which the searches of one graph stop; what they miss counts as not ordered.
WORK_LIMIT = 4_000_000

#: Where a search from replica ``s`` of its source has got to, at a node: replica ``s``,
#: ``s + 1`` or ``s - 1``; all from ``s + 1`` on (``UP``), all to ``s - 1`` (``DOWN``);
#: all replicas, or the only one (``ALL``).  Paths to ``s + 1`` use the indices ``s`` and
#: ``s + 1`` only, so that they exist wherever both ends do.
SAME, NEXT, BEFORE, UP, DOWN, ALL = 0, 1, -1, 2, -2, 3


class Order(NamedTuple):
    """Which replicas ``i`` of one transition surely end before ``j`` of another begins.

    ``same``: those with i = j; ``up``: all with i < j; ``down``: all with i > j.  Where the
    two have no index in common, all three are true, or none.
    """

    same: bool = False
    up: bool = False
    down: bool = False

    @property
    def whole(self) -> bool:
        """Whether every replica of the one comes before every one of the other."""
        return all(self)


class Given(NamedTuple):
    """What may be assumed: conditions that hold, and counts that are at least one."""

    tests: frozenset[tuple[str, str, str]]
    counts: frozenset[str]


def given(*components: Component) -> Given:
    """What holds wherever all ``components`` have a replica."""
    tests = (t for c in components if c.when is not None for t in c.when.tests)
    counts = (c.replicas for c in components if isinstance(c.replicas, str))
    return Given(frozenset((t.subject, t.op, repr(t.value)) for t in tests), frozenset(counts))


def exclusive(one: Component, other: Component) -> bool:
    """Whether the conditions of two components surely never hold together."""
    if one.when is None or other.when is None:
        return False
    return any(_contradict(a, b) for a in one.when.tests for b in other.when.tests)


def _contradict(one: Test, other: Test) -> bool:
    if one.subject != other.subject:
        return False
    if one.op == "not" or other.op == "not":
        a, b = (one, other) if one.op == "not" else (other, one)
        return b.op in ("is", "in") and all(value == a.value for value in _values(b))
    if one.op not in ("is", "in") or other.op not in ("is", "in"):
        return False
    return not any(value in _values(other) for value in _values(one))


def _values(test: Test) -> tuple[Scalar, ...]:
    return test.value if isinstance(test.value, tuple) else (test.value,)


class Ordering:
    """Answers about one graph; one search per source, kept."""

    def __init__(self, spec: Spec, graph: Graph) -> None:
        self.graph = graph
        self.work = 0
        self.tests = {c.name: given(c).tests for c in spec.components.values()}
        self.outgoing: list[list[Edge]] = [[] for _ in graph.nodes]
        for edge in graph.edges:
            if self._usable(edge):
                self.outgoing[edge.source].append(edge)
        self.place = [0] * len(graph.nodes)
        for place, members in enumerate(strongly_connected(graph.successors())):
            for node in members:
                self.place[node] = place
        self._found: dict[tuple[int, Given], dict[int, set[int]]] = {}
        self._rows: dict[tuple[int, int, Given], bool] = {}

    def between(self, source: int, target: int, known: Given) -> Order:
        """Which replicas of ``source`` surely end before which of ``target`` begin."""
        key = source, known
        if key not in self._found:
            self._found[key] = self._search(source, known)
        found = self._found[key].get(target, ())
        if ALL in found:
            return Order(source != target, True, True)
        return Order(source != target and SAME in found, UP in found, DOWN in found)

    def _usable(self, edge: Edge) -> bool:
        """Whether the edge holds for all replicas of its target.

        Those that the template only approximates (a layout, an offset between a listed
        and a symbolic component) are left out.
        """
        if not (edge.wide and self.graph.nodes[edge.target].symbolic):
            return True
        offset = edge.ref is not None and edge.ref.index.kind == "offset"
        return not (edge.low or offset or edge.layout is not None)

    def _search(self, source: int, known: Given) -> dict[int, set[int]]:
        """What comes after ``source``: for each node the places got to."""
        found: dict[int, set[int]] = {}
        start = SAME if self.graph.nodes[source].symbolic else ALL
        queue = deque([(source, start)])

        def reach(node: int, where: int) -> None:
            if where not in found.setdefault(node, set()):
                found[node].add(where)
                queue.append((node, where))

        while queue:
            node, where = queue.popleft()
            for row in self._further(node, where, known):
                reach(node, row)
            for edge in self.outgoing[node]:
                self.work += 1
                if self.work > WORK_LIMIT:
                    return found
                if self._exists(edge.target, known):
                    following = self._step(edge, where, known)
                    if following is not None:
                        reach(edge.target, following)
        return found

    def _exists(self, node: int, known: Given) -> bool:
        """Whether the node's component is there wherever the two ends are."""
        return self.tests.get(self.graph.nodes[node].component, frozenset()) <= known.tests

    def _step(self, edge: Edge, where: int, known: Given) -> int | None:
        """Which replicas of the target come after those at ``where`` of the source."""
        source, target = self.graph.nodes[edge.source], self.graph.nodes[edge.target]
        if not source.symbolic:
            return ALL
        if not edge.wide:
            if source.count != target.count:
                return None
            if edge.weight == 0:
                return where
            return -edge.weight if where == SAME and abs(edge.weight) == 1 else None
        if edge.at is None and where == SAME:
            return ALL
        least = source.count if isinstance(source.count, int) else source.count in known.counts
        return ALL if where == ALL and (edge.at or 0) < int(least) else None

    def _further(self, node: int, where: int, known: Given) -> Iterator[int]:
        """The rows of replicas that begin at ``where``, if each waits for the one before."""
        if where in (SAME, NEXT) and self._row(node, 1, known):
            yield UP
        if where in (SAME, BEFORE) and self._row(node, -1, known):
            yield DOWN

    def _row(self, node: int, sign: int, known: Given) -> bool:
        """Whether replica ``i + sign`` always comes after replica ``i``."""
        key = node, sign, known
        if key not in self._rows:
            self._rows[key] = self.graph.nodes[node].symbolic and self._leads(node, sign, known)
        return self._rows[key]

    def _leads(self, start: int, sign: int, known: Given) -> bool:
        stack = [(start, 0)]
        seen = set(stack)
        while stack:
            node, at = stack.pop()
            for edge in self.outgoing[node]:
                if edge.wide or self.place[edge.target] != self.place[start]:
                    continue
                if self.graph.nodes[edge.target].count != self.graph.nodes[start].count:
                    continue
                self.work += 1
                following = edge.target, at - edge.weight * sign
                if following == (start, 1):
                    return True
                if (
                    following[1] in (0, 1)
                    and following not in seen
                    and self._exists(edge.target, known)
                ):
                    seen.add(following)
                    stack.append(following)
        return False
