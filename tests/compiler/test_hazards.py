"""Hazards on random specs, against the expansion for small counts (oracle: networkx)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import networkx as nx
from hazard_specs import change, effects, fork_edge, hazardous, processes
from hypothesis import assume, example, given, settings
from strategies import specs

from build import after, component, spec
from cfac.compiler.check import check
from cfac.compiler.expand import Transition, count_of, expand, indices
from cfac.compiler.graph import build
from cfac.compiler.hazards import find_hazards
from cfac.compiler.model import Component, Effect, Spec
from cfac.compiler.schedule import INTERVALS

Found = set[tuple[str, tuple[str, str], tuple[str, str]]]


def home(owner: Component, index: int | None) -> tuple[str, int | None]:
    return (owner.name, index) if owner.process is not None else ("", None)


class Oracle:
    """What conflicts in the expansion for given counts."""

    def __init__(self, model: Spec, counts: dict[str, int], absent: set[str]) -> None:
        self.model = model
        self.graph = expand(model, counts, absent)
        self.counts = counts
        self.absent = absent
        digraph = nx.DiGraph()
        digraph.add_nodes_from(range(len(self.graph.names)))
        digraph.add_edges_from((e.source, e.target) for e in self.graph.edges)
        self.acyclic = nx.is_directed_acyclic_graph(digraph)
        self.later = {n: nx.descendants(digraph, n) for n in digraph}
        self.acts = [
            (n, t, owner, state, act)
            for n, t in enumerate(self.graph.transitions)
            for owner in [model.components[t.component]]
            for state in owner.states
            if state.name == t.state
            for act in state.effects
        ]

    def before(self, one: int, other: int) -> bool:
        return other in self.later[one]

    def node(self, component: str, index: int | None, state: str) -> int | None:
        return self.graph.ids.get(Transition(component, index, state))

    def reached(self, one: int, other: int | None, same: bool) -> bool:
        return other is not None and (self.before(one, other) or (same and one == other))

    def closed(
        self, n: int, t: Transition, act: Effect, other: int | None, same: bool = False
    ) -> bool:
        """Whether the interval is over when ``other`` begins (``same``: when it ends)."""
        if act.until is None or not self.reached(n, other, same):
            return False
        end = self.model.components[act.until.component]
        owner = self.model.components[t.component]
        count = count_of(self.model, end, self.counts)
        places = indices(self.model, owner, t.index, act.until.index, count)
        ends = [self.node(end.name, i, act.until.state) for i in places]
        return all(e is None or self.reached(e, other, same) for e in ends)

    def forks(self) -> Iterator[tuple[Component, Component, int | None, int | None, int | None]]:
        """Children forked: parent, child, their indices, and the transition before it."""
        for child in self.model.components.values():
            at = child.process.strategy.at if child.process else None
            if at is None or child.name in self.absent or at.component in self.absent:
                continue
            parent = self.model.components[at.component]
            count = count_of(self.model, child, self.counts)
            for k in [None] if count is None else range(count):
                i = None if parent.replicas is None else k
                yield parent, child, i, k, self.node(parent.name, i, at.state)

    def over(
        self, parent: Component, child: Component, i: int | None, k: int | None, n: int
    ) -> bool:
        """Whether the fork of a child is over when ``n`` begins."""
        assert child.process is not None and child.process.strategy.at is not None
        place = parent.position(child.process.strategy.at.state) + 1
        if not child.process.context and place < len(parent.states):
            goes_on = self.node(parent.name, i, parent.states[place].name)
            if goes_on == n or (goes_on is not None and self.before(goes_on, n)):
                return True
        born = self.node(child.name, k, child.states[1].name)
        return born is not None and self.before(born, n)

    def around_forks(self) -> Iterator[tuple[str, Transition, Transition]]:
        for parent, child, i, k, node in self.forks():
            at = Transition(parent.name, i, child.process.strategy.at.state)  # type: ignore
            for n, t, c, s, a in self.acts:
                if home(c, t.index) != home(parent, i) or self.over(parent, child, i, k, n):
                    continue
                opens = a.kind in ("starts_threads", "openmp", "initializes")
                if opens and not self.closed(n, t, a, node, same=True):
                    yield "CF502", t, at
                if a.kind != "reads" or not (a.value or "").startswith("env:"):
                    continue
                if any(e.kind == "writes" and e.value == a.value for e in s.effects):
                    continue
                for _, u, d, _, b in self.acts:
                    if (b.kind, b.value) == ("writes", a.value) and self.bears(child, k, d, u):
                        yield "ENV", t, u

    def bears(self, child: Component, k: int | None, owner: Component, t: Transition) -> bool:
        """Whether the process of ``t`` is replica ``k`` of ``child``, or was forked from it."""
        if (owner, t.index) == (child, k):
            return True
        return any(
            self.bears(child, k, parent, Transition(parent.name, i, ""))
            for parent, other, i, j, _ in self.forks()
            if (other, j) == (owner, t.index)
        )

    def above(self, owner: Component, index: int | None) -> set[tuple[str, int | None]]:
        """The processes from which replica ``index`` may descend.

        A fork of a replica makes the child of its own index; who spawns is not known else.
        """
        if owner.process is None:
            return set()
        parent = self.model.components.get(owner.process.spawned_by or "")
        if parent is None or parent.process is None:
            return {("", None)}
        count = count_of(self.model, parent, self.counts)
        same = owner.process.strategy.at is not None
        places = [None] if count is None else [index] if same else list(range(count))
        return {p for i in places for p in {home(parent, i)} | self.above(parent, i)}

    def inherits(self, n: int, t: Transition, m: int, u: Transition) -> bool:
        """Whether what ``n`` writes has reached the process of ``m``, which it descends from."""
        owner = self.model.components[u.component]
        for parent, child, i, k, node in self.forks():
            assert child.process is not None
            states = child.states[1 : child.position(u.state) + 1] if child == owner else ()
            early = states and not child.process.context and all(s.aux for s in states)
            writer = home(self.model.components[t.component], t.index)
            if early and k == u.index and writer == home(parent, i):
                return self.reached(n, node, same=True)
        return self.before(n, m)

    def found(self) -> Found:
        return {
            (code, *sorted([(a.component, a.state), (b.component, b.state)]))
            for code, a, b in self.conflicts()
        }  # type: ignore[misc]

    def conflicts(self) -> Iterator[tuple[str, Transition, Transition]]:
        yield from self.around_forks()
        writes = {(n, a.value) for n, _, _, _, a in self.acts if a.kind == "writes"}
        for (n, t, c, _, a), (m, u, d, _, b) in itertools.product(self.acts, repeat=2):
            ordered = self.before(n, m) or self.before(m, n)
            local = home(c, t.index) == home(d, u.index)
            env = (a.value or "").startswith("env:")
            closed = self.closed(n, t, a, m)
            if n != m and a.kind == b.kind == "holds" and a.value == b.value:
                parts = c.name == d.name and a.together and b.together and t.index != u.index
                if not (parts or closed or self.closed(m, u, b, n)):
                    yield "CF503", t, u
                continue
            opens = a.kind in ("starts_threads", "openmp", "initializes")
            if opens and b.kind == "forks" and local and not (closed or self.before(m, n)):
                yield "CF502", t, u
            demanded = INTERVALS.get(b.value or "") if b.kind == "before" else None
            if opens and a.kind == demanded and local and not self.before(m, n):
                yield "CF506", t, u
            if n == m or a.value != b.value or a.kind != "writes":
                continue
            if b.kind == "writes" and not ordered and (local or not env):
                yield "CF501", t, u
            if b.kind != "reads" or (m, b.value) in writes:
                continue
            if not env:
                if not ordered:
                    yield "CF501", t, u
            elif local:
                if not self.before(n, m):
                    yield "ENV", t, u
            elif home(c, t.index) in self.above(d, u.index):
                own = any(
                    self.before(k, m)
                    for k, v, e, _, act in self.acts
                    if act.kind == "writes" and act.value == a.value
                    and home(e, v.index) == home(d, u.index)
                )  # fmt: skip
                if not (own or self.inherits(n, t, m, u)):
                    yield "ENV", t, u


def reported(model: Spec) -> Found:
    return {
        (
            "ENV" if (h.one.effect.value or "").startswith("env:")
            and {h.one.effect.kind, h.other.effect.kind} == {"reads", "writes"} else h.code,
            *sorted([h.one.key, h.other.key]),
        )
        for h in find_hazards(model, build(model))
    }  # type: ignore[misc]  # fmt: skip


def modes(model: Spec) -> list[set[str]]:
    """The sets of components that a value of the one parameter in `when` leaves out."""
    conditional = {c.name: c.when.tests[0].value for c in model.components.values() if c.when}
    return [{n for n, v in conditional.items() if v != mode} for mode in ("on", "off", "neither")]


WITH_REPLICAS = specs(
    counts=(None, "n", "n", "m", 3), indices=("*", "0", "1", "i-2", "i-1", "i-1", "i", "i+1"),
    waits=9, forward=True, when=True, largest=3, aux=True,
)  # fmt: skip


@given(hazardous(WITH_REPLICAS))
@settings(max_examples=600, deadline=None)
def test_nothing_unordered_goes_unreported(model: Spec) -> None:
    told = reported(model)
    for n, absent in itertools.product((0, 1, 2, 3, 4), modes(model)):
        oracle = Oracle(model, {"n": n, "m": max(0, n - 1)}, absent)
        if oracle.acyclic:
            assert oracle.found() <= told


@given(hazardous(specs(counts=(None,), waits=9, forward=True, aux=True)))
@settings(max_examples=600, deadline=None)
def test_exact_without_replicas(model: Spec) -> None:
    oracle = Oracle(model, {}, set())
    assume(oracle.acyclic)
    assert reported(model) == oracle.found()


def own_fork() -> Spec:
    """What once was refused: a replica waits for the child that it forks itself."""
    parts = [
        component("c0", {"S": [], "A": [], "B": ["c1[i].A"]}, 2),
        component("c1", {"S": [], "A": []}, 2),
    ]
    model = processes(spec(*parts), c0="", c1="c0")
    return effects(fork_edge(model, "c1", "c0[i].S", early=False), {"c0.B": ["starts_threads"]})


@example(own_fork())
@given(hazardous(specs(counts=(None, 2, 3), indices=("*", "0", "1", "i-1", "i"), forward=True)))
@settings(max_examples=200, deadline=None)
def test_exact_on_literal_counts(model: Spec) -> None:
    oracle = Oracle(model, {}, set())
    assume(oracle.acyclic)
    assert reported(model) == oracle.found()


FORKED = specs(
    counts=(None, 2, 2), indices=("*", "0", "i-1", "i", "i"), waits=9, forward=True, when=True,
    largest=3, aux=True,
)  # fmt: skip


@given(hazardous(FORKED, forks=True))
@settings(max_examples=300, deadline=None)
def test_exact_beside_forks_and_alternatives(model: Spec) -> None:
    """What conflicts for some value of the parameter in `when` is reported, and no more."""
    oracles = [Oracle(model, {}, absent) for absent in modes(model)]
    assume(all(oracle.acyclic for oracle in oracles))
    assert reported(model) == set().union(*(oracle.found() for oracle in oracles))


@given(hazardous(specs(counts=(None,), waits=6, forward=True)))
@settings(max_examples=300, deadline=None)
def test_the_advice_cures(model: Spec) -> None:
    """Each `after` that a message advises removes that hazard and makes no cycle."""
    assume(Oracle(model, {}, set()).acyclic)
    for told in (d for d in check(model).diagnostics if d.code.startswith("CF50")):
        for refs, owner, state in re.findall(
            r"add `after: \[?([^`\]]+)\]?` to (\w+)\.(\w+)", told.help or ""
        ):
            target = model.components[owner].state(state)
            assert target is not None
            more = (*target.after, *after(*refs.split(", ")))
            found = check(change(model, (owner, state), after=more)).diagnostics
            assert not any(d.code == "CF301" for d in found)
            assert not any(
                (d.code, d.message, d.span) == (told.code, told.message, told.span)
                and d.notes == told.notes for d in found
            )  # fmt: skip
