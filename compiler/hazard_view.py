"""Graphs of a spec, and what is proven on them of two transitions: for `hazards`.

A rule holds of a pair of nodes and of how their replicas lie to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.effects import Act, Fork
from cfac.compiler.graph import Graph
from cfac.compiler.merge import group_nodes, is_per_replica
from cfac.compiler.model import Component, Ref, Spec
from cfac.compiler.ordering import Given, Ordering, exclusive, given

#: More pairs of listed replicas than this are not compared one by one.
MAX_PAIRS = 10_000
#: The fields of an `Order`: replicas i = j, i < j, i > j.
SAME, UP, DOWN = range(3)


@dataclass(frozen=True, slots=True)
class Pair:
    """Replicas of two transitions: nodes of a view's graph, and which of their replicas."""

    one: int
    other: int
    kind: int

    def swapped(self) -> Pair:
        """The same two the other way round."""
        kind = {SAME: SAME, UP: DOWN, DOWN: UP}[self.kind]
        return Pair(self.other, self.one, kind)


Rule = Callable[["View", Pair], bool]
#: Components that exist wherever two transitions can conflict.
Also = tuple[Component, ...]


def _shifted(kind: int, offset: int) -> tuple[int, ...]:
    """How ``i + offset`` may lie to ``j`` where ``kind`` tells how ``i`` does."""
    if offset == 0:
        return (kind,)
    away = UP if offset < 0 else DOWN
    return (away,) if kind in (SAME, away) else (SAME, UP, DOWN)


class View:
    """One graph of the spec, and what is proven on it."""

    def __init__(self, spec: Spec, graph: Graph) -> None:
        self.spec = spec
        self.graph = graph
        self.ordering = Ordering(spec, graph)
        grouping = group_nodes(spec, graph, Diagnostics())
        self.groups = grouping.of
        self.per_replica = [is_per_replica(group) for group in grouping.groups]

    def every(self, one: Act, other: Act, rule: Rule, *, own: bool) -> bool:
        """Whether ``rule`` holds for all pairs of replicas; ``own``: of the same index."""
        ones, others = self.graph.ids[one.key], self.graph.ids[other.key]
        if len(ones) * len(others) > MAX_PAIRS:
            return False
        return all(
            rule(self, Pair(a, b, kind)) for a in ones for b in others for kind in
            self._kinds(a, b, own=own)
        )  # fmt: skip

    def _kinds(self, one: int, other: int, *, own: bool) -> tuple[int, ...]:
        """Which replicas of two nodes there are to compare."""
        a, b = self.graph.nodes[one], self.graph.nodes[other]
        if a.symbolic and b.symbolic and a.count == b.count:
            return (SAME,) if own or a.count == 1 else (SAME, UP, DOWN)
        if own and a.symbolic == b.symbolic and a.index != b.index:
            return ()
        return (SAME,)

    def together(self, pair: Pair) -> bool:
        """Whether both are the same transition: the same one, or merged into one."""
        same = pair.kind == SAME or not self.graph.nodes[pair.one].symbolic
        return (pair.one == pair.other and same) or self._merged(pair)

    def _merged(self, pair: Pair) -> bool:
        group = self.groups.get(pair.one)
        if group is None or group != self.groups.get(pair.other):
            return False
        indices = (self.graph.nodes[n].index for n in (pair.one, pair.other))
        return not self.per_replica[group] or (pair.kind == SAME and len(set(indices)) == 1)

    def before(self, pair: Pair, known: Given) -> bool:
        """Whether the first surely ends before the second begins."""
        order = self.ordering.between(pair.one, pair.other, known)
        return order[pair.kind] and not self.together(pair)

    @staticmethod
    def apart(one: Act, other: Act) -> Rule:
        """The rule that two transitions never run at the same time."""
        known = given(one.component, other.component)

        def rule(view: View, pair: Pair) -> bool:
            if view.together(pair):
                return True
            return view.before(pair, known) or view.before(pair.swapped(), known)

        return rule

    @staticmethod
    def precedes(one: Act, other: Act, also: Also = ()) -> Rule:
        """The rule that the first comes before the second, or is the same."""
        known = given(one.component, other.component, *also)

        def rule(view: View, pair: Pair) -> bool:
            return view.together(pair) or view.before(pair, known)

        return rule

    def forked(self, fork: Fork, act: Act, pair: Pair, also: Also) -> bool:
        """Whether ``fork`` is surely over before ``act`` begins; ``pair``: act, fork's proxy."""
        parent, child = fork.act.component, fork.child
        known = given(act.component, parent, *also)
        if child is None:
            return self.before(pair.swapped(), known)
        place = parent.position(fork.act.state.name) + 1
        if fork.early and place < len(parent.states):
            row = self.graph.ids[fork.proxy.key].index(pair.other)
            node = self.graph.ids[parent.name, parent.states[place].name][row]
            goes_on = Pair(node, pair.one, pair.swapped().kind)
            if node == pair.one and pair.kind == SAME and not self._merged(pair):
                return True
            if self.before(goes_on, known):
                return True
        if len(child.states) < 2:
            return False
        return all(self.before(born, known) for born in self._born(fork, child, pair))

    def _born(self, fork: Fork, child: Component, pair: Pair) -> Iterator[Pair]:
        """First transitions of what the forking replica makes, each beside the pair's act.

        A replicated parent forks the child of its own index (docs/spec.md, Forks), a
        single one all of them.
        """
        forking = self.graph.nodes[pair.other]
        births = self.graph.ids[child.name, child.states[1].name]
        kinds: tuple[int, ...] = (SAME, UP, DOWN)
        if fork.act.component.replicas is not None and births:
            symbolic = self.graph.nodes[births[0]].symbolic
            if symbolic and forking.symbolic:
                kinds = (pair.swapped().kind,)
            elif not symbolic and forking.index is not None:
                births = births[forking.index : forking.index + 1]
        return (Pair(born, pair.one, kind) for born in births for kind in kinds)

    def ended(
        self, act: Act, other: Act, pair: Pair, also: Also = (), *, inclusive: bool = False
    ) -> bool:
        """Whether the interval that ``act`` opens is surely closed before ``other`` begins.

        ``inclusive``: before it ends.
        """

        def over(pair: Pair, known: Given) -> bool:
            return self.before(pair, known) or (inclusive and self.together(pair))

        present = act.component, other.component, *also
        known = given(*present)
        if act.effect.until is None or not over(pair, known):
            return False
        ends = self._ends(act.effect.until, pair.one)
        if ends is None:
            return False
        component = self.spec.components[act.effect.until.component]
        if any(exclusive(component, one) for one in present):
            return True  # where it is absent, the interval ends with its transition
        known = given(component, *present)
        for end, shift in ends:
            kinds = (SAME, UP, DOWN) if shift is None else _shifted(pair.kind, shift)
            if not all(over(Pair(end, pair.other, kind), known) for kind in kinds):
                return False
        return True

    def _ends(self, until: Ref, opener: int) -> list[tuple[int, int | None]] | None:
        """The nodes that end an interval, all replicas of them or only the one so far off.

        None if it never ends: an initial state is no end.
        """
        ids = self.graph.ids.get((until.component, until.state))
        if ids is None:
            return None
        node = self.graph.nodes[opener]
        every: list[tuple[int, int | None]] = [(end, None) for end in ids]
        if not ids or until.index.kind in ("none", "all"):
            return every
        first, value = self.graph.nodes[ids[0]], until.index.value
        if until.index.kind == "offset" and isinstance(value, int):
            if node.symbolic and first.symbolic and node.count == first.count:
                return [(ids[0], value)]
            places = [node.index + value] if node.index is not None else None
        elif until.index.kind == "at" and isinstance(value, int):
            places = [value]
        else:
            layout = self.spec.layouts.get((node.component, str(value)))
            places = list(layout.lists[node.index]) if layout and node.index is not None else None
        if places is None or first.symbolic:
            return every
        return [every[place] for place in places if 0 <= place < len(every)]
