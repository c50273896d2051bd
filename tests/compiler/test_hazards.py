"""Hazards on random specs, against the expansion for small counts (oracle: networkx)."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import specs

from build import after, component, ref, span, spec
from cfac.compiler.check import check
from cfac.compiler.expand import Transition, count_of, expand, indices
from cfac.compiler.graph import build
from cfac.compiler.hazards import find_hazards
from cfac.compiler.model import Component, Effect, Index, Process, Ref, Site, Spec, Strategy

Found = set[tuple[str, tuple[str, str], tuple[str, str]]]
KINDS = ["reads x", "writes x", "reads env:K", "writes env:K", "holds x", "starts_threads",
         "openmp", "initializes", "forks"]  # fmt: skip


def effect(text: str, until: Ref | None = None) -> Effect:
    kind, _, value = text.partition(" ")
    return Effect(kind, value or None, until, span())


def change(model: Spec, key: tuple[str, str], **fields: object) -> Spec:
    """``model`` with some fields of one state replaced."""
    owner = model.components[key[0]]
    states = tuple(
        dataclasses.replace(s, **fields) if s.name == key[1] else s  # type: ignore[arg-type]
        for s in owner.states
    )
    parts = {**model.components, owner.name: dataclasses.replace(owner, states=states)}
    return dataclasses.replace(model, components=parts)


def effects(model: Spec, found: dict[str, list[str]]) -> Spec:
    """``model`` with effects: ``{"a.A": ["holds x until a.B"]}``."""
    for name, texts in found.items():
        parts = [text.partition(" until ") for text in texts]
        acts = tuple(effect(head, ref(end) if end else None) for head, _, end in parts)
        component_name, _, state = name.partition(".")
        model = change(model, (component_name, state), effects=acts)
    return model


def processes(model: Spec, **parents: str) -> Spec:
    """``model`` with a process of its own for the components named, and who spawns it."""
    parts = dict(model.components)
    for name, parent in parents.items():
        process = Process(parent or None, None, Strategy(), span())
        parts[name] = dataclasses.replace(parts[name], process=process)
    return dataclasses.replace(model, components=parts)


@st.composite
def hazardous(draw: st.DrawFn, base: st.SearchStrategy[Spec]) -> Spec:
    model = draw(base)
    names = list(model.components)
    transitions = [(c.name, s.name) for c, s in model.transitions()]
    for _ in range(draw(st.integers(1, 5))):
        key = draw(st.sampled_from(transitions))
        kind = draw(st.sampled_from(KINDS))
        until = None
        if kind.split()[0] in ("holds", "starts_threads", "openmp") and draw(st.integers(0, 4)):
            end = model.components[draw(st.sampled_from([key[0], *names]))]
            index = Index()
            if end.replicas is not None:
                kinds = [Index("all"), Index("at", 0)]
                if model.components[key[0]].replicas == end.replicas:
                    kinds = [Index("offset", 0), *kinds, Index("offset", -1)]
                index = draw(st.sampled_from(kinds))
            state = draw(st.sampled_from([s.name for s in end.states[1:]]))
            until = Ref(end.name, state, index, span())
            if draw(st.integers(0, 4)) == 0:
                own = model.components[key[0]].replicas is None
                until = Ref(*key, Index() if own else Index("offset", 0), span())
        acts = model.components[key[0]].state(key[1])
        assert acts is not None
        model = change(model, key, effects=(*acts.effects, effect(kind, until)))
    for place, name in enumerate(names):
        if draw(st.booleans()):
            parent = draw(st.sampled_from(["", *names[:place]]))
            model = processes(model, **{name: parent})
            if parent and draw(st.booleans()):
                model = forked(model, name, draw)
    return model


def forked(model: Spec, name: str, draw: st.DrawFn) -> Spec:
    """``model`` with a component forked from the one that spawns it, where that can be."""
    child = model.components[name]
    assert child.process is not None and child.process.spawned_by is not None
    parent = model.components[child.process.spawned_by]
    if parent.replicas not in (None, child.replicas):
        return model
    index = Index() if parent.replicas is None else Index("offset", 0)
    at = Ref(parent.name, draw(st.sampled_from([s.name for s in parent.states])), index, span())
    context = draw(st.sampled_from([(), (Site(span(), "context", "replace_callee"),)]))
    process = dataclasses.replace(child.process, strategy=Strategy("fork", at), context=context)
    parts = {**model.components, name: dataclasses.replace(child, process=process)}
    return dataclasses.replace(model, components=parts)


def home(owner: Component, index: int | None) -> tuple[str, int | None]:
    return (owner.name, index) if owner.process is not None else ("", None)


def above(model: Spec, owner: Component) -> set[str]:
    found = set()
    at: Component | None = owner
    while at is not None and at.process is not None:
        at = model.components.get(at.process.spawned_by or "")
        found.add(at.name if at is not None and at.process is not None else "")
    return found


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

    def inherits(self, n: int, t: Transition, m: int, u: Transition) -> bool:
        """Whether what ``n`` writes has reached the process of ``m``, which it descends from."""
        owner = self.model.components[u.component]
        for parent, child, _, k, node in self.forks():
            assert child.process is not None
            states = child.states[1 : child.position(u.state) + 1] if child == owner else ()
            early = states and not child.process.context and all(s.aux for s in states)
            writer = home(self.model.components[t.component], t.index)[0]
            if early and k == u.index and writer == home(parent, None)[0]:
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
                if not (closed or self.closed(m, u, b, n)):
                    yield "CF503", t, u
                continue
            opens = a.kind in ("starts_threads", "openmp", "initializes")
            if opens and b.kind == "forks" and local and not (closed or self.before(m, n)):
                yield "CF502", t, u
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
            elif home(c, t.index)[0] in above(self.model, d):
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


@given(hazardous(specs(counts=(None, 2, 3), indices=("*", "0", "1", "i-1", "i"), forward=True)))
@settings(max_examples=200, deadline=None)
def test_exact_on_literal_counts(model: Spec) -> None:
    oracle = Oracle(model, {}, set())
    assume(oracle.acyclic)
    assert reported(model) == oracle.found()


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


def codes(model: Spec) -> list[str]:
    return [h.code for h in find_hazards(model, build(model))]


def row(*waits: str, count: str | int = "n") -> Spec:
    model = spec(component("x", {"S": [], "A": list(waits), "B": []}, count))
    return effects(model, {"x.A": ["writes file"]})


@pytest.mark.parametrize(
    ("waits", "safe"),
    [
        ([], False), (["x[i-1].A"], True), (["x[i-1].B"], True), (["x[i+1].A"], True),
        (["x[i-2].A"], False), (["x[i-2].A", "x[i-3].A"], False), (["x[0].A"], False),
    ],
)  # fmt: skip
def test_replicas_in_a_row(waits: list[str], safe: bool) -> None:
    assert codes(row(*waits)) == ([] if safe else ["CF501"])
    assert codes(row(*waits, count=1)) == []


def test_a_row_through_another_component() -> None:
    parts = [
        component("d", {"S": [], "T": ["d[i-1].T"]}, "n"),
        component("a", {"S": [], "A": ["d[i].T"]}, "n"),
        component("b", {"S": [], "B": ["a.*.A"]}, "n"),
    ]
    model = effects(spec(*parts), {"a.A": ["writes x"]})
    assert codes(model) == ["CF501"]  # d orders the begins only
    turns = component("d", {"S": [], "T": ["a[i-1].A"]}, "n")
    model = effects(spec(turns, *parts[1:]), {"a.A": ["writes x"], "b.B": ["reads x"]})
    assert codes(model) == []


def test_an_order_through_what_may_be_absent_is_none() -> None:
    def model(when: str = "", replicas: str | None = None) -> Spec:
        through = component("w", {"S": [], "W": ["a.A"]}, replicas, when)
        wait = "w.*.W" if replicas else "w.W"
        parts = [component("a", {"S": [], "A": []}), component("b", {"S": [], "B": [wait]})]
        return effects(spec(*parts, through), {"a.A": ["writes x"], "b.B": ["writes x"]})

    assert codes(model()) == []
    assert codes(model(when="on")) == ["CF501"]
    assert codes(model(replicas="n")) == ["CF501"]


def test_alternatives_do_not_conflict() -> None:
    parts = [
        component(n, {"S": [], "A": []}, None, when) for n, when in [("a", "on"), ("b", "off")]
    ]
    assert codes(effects(spec(*parts), {"a.A": ["writes x"], "b.A": ["writes x"]})) == []


def test_processes() -> None:
    parts = [component(n, {"S": [], "A": []}) for n in "abc"]
    model = effects(spec(*parts), {"a.A": ["starts_threads"], "b.A": ["forks"]})
    assert codes(model) == ["CF502"]
    assert codes(processes(model, b="a")) == []
    # Replicas of a component with a process are processes of their own.
    many = spec(component("w", {"S": [], "A": [], "B": []}, "n"))
    many = effects(many, {"w.A": ["forks"], "w.B": ["starts_threads", "writes env:K"]})
    assert codes(many) == ["CF501", "CF502"]
    assert codes(processes(many, w="")) == []


def test_an_end_before_the_beginning_is_none() -> None:
    parts = [component("a", {"S": [], "A": [], "B": []}), component("f", {"S": [], "F": ["a.A"]})]
    acts = {"a.B": ["starts_threads until a.A"], "f.F": ["forks"]}
    assert codes(effects(spec(*parts), acts)) == ["CF502"]
    acts["a.B"] = ["starts_threads until a.S"]
    assert codes(effects(spec(*parts), acts)) == ["CF502"]


def test_merged_transitions_are_one() -> None:
    parts = [component("a", {"S": [], "A": []}), component("b", {"S": [], "B": ["a.A"]})]
    acts = {"a.A": ["writes x", "forks"], "b.B": ["writes x", "starts_threads"]}
    assert codes(effects(spec(*parts), acts)) == []
    merged = effects(spec(*parts, merges={"g": ["a.A", "b.B"]}), acts)
    assert codes(merged) == ["CF502"]
    many = {"w": {"S": [], "A": [], "B": []}}
    acts = {"w.A": ["writes x"], "w.B": ["writes x"]}
    one = spec(component("w", many["w"], "n"), merges={"g": ["w[i].A", "w[i].B"]})
    assert codes(effects(one, acts)) == ["CF501"] * 3
    one = spec(component("w", many["w"], "n"), merges={"g": ["w.*.A", "w.*.B"]})
    assert codes(effects(one, acts)) == []


def test_what_a_child_inherits() -> None:
    parts = [
        component("a", {"S": [], "A": []}),
        component("b", {"S": [], "W": [], "R": []}),
        component("c", {"S": [], "R": []}),
    ]
    model = processes(spec(*parts), b="a", c="b")
    acts = {"a.A": ["writes env:K"], "b.R": ["reads env:K"], "c.R": ["reads env:K"]}
    assert codes(effects(model, acts)) == ["CF501"] * 2
    # b's own write hides what it inherits, and c inherits that.
    assert codes(effects(model, {**acts, "b.W": ["writes env:K"]})) == ["CF501"] * 2
    late = change(model, ("a", "A"), after=after("c.R"))
    assert codes(effects(late, acts)) == ["CF501", "CF504"]


def fork_edge(model: Spec, child: str, at: str, *, early: bool = True) -> Spec:
    owner = model.components[child]
    assert owner.process is not None
    context = () if early else (Site(span(), "context", "replace_callee"),)
    process = dataclasses.replace(
        owner.process, strategy=Strategy("fork", ref(at)), context=context
    )
    parts = {**model.components, child: dataclasses.replace(owner, process=process)}
    return dataclasses.replace(model, components=parts)


def test_fork_edges() -> None:
    parts = [
        component("p", {"S": [], "A": [], "B": [], "C": []}),
        component("q", {"S": [], "Q": ["p.A"]}),
        component("c", {"S": [], "Born'": [], "Stock": []}),
    ]
    model = fork_edge(processes(spec(*parts), c="p"), "c", "p.A")
    late = fork_edge(model, "c", "p.A", early=False)
    threads = ["starts_threads"]
    assert codes(effects(model, {"p.B": threads})) == []  # p goes on when the fork is over
    assert codes(effects(late, {"p.B": threads})) == ["CF502"]
    assert codes(effects(model, {"p.A": threads})) == ["CF502"]
    assert codes(effects(model, {"p.A": ["starts_threads until p.A"]})) == []
    assert codes(effects(model, {"p.A": ["starts_threads until p.B"]})) == ["CF502"]
    # Others go on when the state is published, which is before the fork.
    assert codes(effects(model, {"q.Q": threads})) == ["CF502"]
    for good in (model, late):
        cured = change(good, ("q", "Q"), after=after("c.Born"))
        assert codes(effects(cured, {"q.Q": threads})) == []
    merged = dataclasses.replace(
        model, merges=spec(merges={"g": ["p.A", "p.B"]}).merges
    )  # fmt: skip
    assert codes(effects(merged, {"p.B": threads})) == ["CF502"]
    start = fork_edge(model, "c", "p.S")
    assert codes(effects(start, {"p.A": threads})) == []
    assert codes(effects(start, {"q.Q": threads})) == []


def test_environment_at_a_fork() -> None:
    parts = [
        component("p", {"S": [], "A": [], "B": []}),
        component("c", {"S": [], "Born'": ["p.B"], "Stock": []}),
    ]
    model = fork_edge(processes(spec(*parts), c="p"), "c", "p.A")
    late = fork_edge(model, "c", "p.A", early=False)
    write = {"p.B": ["writes env:K"]}
    assert codes(effects(model, {**write, "c.Born": ["reads env:K"]})) == ["CF501"]
    assert codes(effects(late, {**write, "c.Born": ["reads env:K"]})) == []
    # What changed after the fork is sent with the engine's orders.
    assert codes(effects(model, {**write, "c.Stock": ["reads env:K"]})) == []
    assert codes(effects(model, {"p.A": ["writes env:K"], "c.Born": ["reads env:K"]})) == []
    # What was read before the fork stays read.
    late_write = {"c.Born": ["writes env:K"]}
    assert codes(effects(model, {**late_write, "p.A": ["reads env:K"]})) == ["CF504"]
    assert codes(effects(model, {**late_write, "p.B": ["reads env:K"]})) == []


def test_the_end_in_a_neighbour() -> None:
    part = component("x", {"S": [], "A": [], "B": [], "C": []}, "n")
    acts = {"x.A": ["starts_threads until x[i-1].B"], "x.C": ["forks"]}
    assert codes(effects(processes(spec(part), x=""), acts)) == ["CF502"]


def test_no_replicas_have_no_effects() -> None:
    assert codes(row(count=0)) == []


def test_initial_states_have_no_effects() -> None:
    model = spec(component("a", {"S": [], "A": []}))
    assert codes(effects(model, {"a.S": ["reads x"]})) == ["CF505"]
