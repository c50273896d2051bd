"""Redundant waits: what is reported is implied for every count and every `when`."""

from __future__ import annotations

import dataclasses
import itertools

import networkx as nx
from hypothesis import given, settings
from strategies import specs

from build import component, spec
from cfac.compiler.check import check
from cfac.compiler.diagnostics import Span
from cfac.compiler.expand import expand
from cfac.compiler.model import Spec


def closure(model: Spec, n: int, absent: set[str], *, schedule: bool) -> set[tuple[str, str]]:
    graph = expand(model, {"n": n, "m": max(0, n - 1)}, absent)
    digraph = nx.DiGraph()
    digraph.add_nodes_from(graph.names)
    digraph.add_edges_from(
        (graph.names[e.source], graph.names[e.target])
        for e in graph.edges
        if schedule or not e.schedule
    )
    return set(nx.transitive_closure(digraph).edges)


def without(model: Spec, spans: set[Span | None]) -> Spec:
    components = {
        name: dataclasses.replace(
            c,
            states=tuple(
                dataclasses.replace(
                    s, after=tuple(d for d in s.after if d.ref.span not in spans)
                )
                for s in c.states
            ),
        )
        for name, c in model.components.items()
    }  # fmt: skip
    return dataclasses.replace(model, components=components)


def reported(model: Spec) -> set[Span | None]:
    return {d.span for d in check(model).diagnostics if d.code == "CF303"}


@given(
    specs(
        counts=(None, "n", "n", "m", 2), indices=("*", "0", "1", "i-2", "i-1", "i", "i+1"),
        waits=10, schedule=True, forward=True, when=True,
    )
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_reported_waits_are_implied(model: Spec) -> None:
    spans = reported(model)
    if not spans:
        return
    less = without(model, spans)
    modes = {"on": set(), "off": set(), "neither": set()}
    for c in model.components.values():
        for mode, absent in modes.items():
            if c.when is not None and c.when.tests[0].value != mode:
                absent.add(c.name)
    for n, absent, schedule in itertools.product((0, 1, 2, 4), modes.values(), (True, False)):
        assert closure(model, n, absent, schedule=schedule) == closure(
            less, n, absent, schedule=schedule
        )


@given(specs(counts=(None,), waits=12, forward=True))
@settings(max_examples=150, deadline=None)
def test_complete_on_plain_graphs(model: Spec) -> None:
    if any(d.severity == "error" for d in check(model).diagnostics):
        return
    less = without(model, reported(model))
    graph = expand(less, {})
    digraph = nx.DiGraph((e.source, e.target) for e in graph.edges)
    waits = [(e.source, e.target) for e in graph.edges if e.ref is not None]
    kept = nx.transitive_reduction(digraph).edges
    assert all(pair in kept for pair in waits)


def test_examples() -> None:
    model = spec(
        component("a", {"S": [], "A": [], "B": []}),
        component("b", {"S": [], "A": ["a.A", "a.B"]}),
        component("w", {"S": [], "A": ["a.A"], "B": ["a.A"]}, "n"),
        component("x", {"S": [], "A": ["w[i-1].B", "w[i-1].A", "w[i-2].B"]}, "n"),
    )
    found = [d for d in check(model).diagnostics if d.code == "CF303"]
    assert [d.message.split(":")[0] for d in found] == [
        "b.A need not wait for a.A",
        "w.B need not wait for a.A",
        "x.A need not wait for w[i-1].A",
    ]
    chain = spec(component("x", {"S": [], "A": ["x[i-1].A", "x[i-2].A"]}, "n"))
    (one,) = [d for d in check(chain).diagnostics if d.code == "CF303"]
    assert "x[i-2].A" in one.message


def test_an_optional_component_implies_nothing_for_others() -> None:
    parts = [component("a", {"S": [], "A": []}), component("c", {"S": [], "A": ["a.A", "b.A"]})]
    assert reported(spec(*parts, component("b", {"S": [], "A": ["a.A"]})))
    assert not reported(spec(*parts, component("b", {"S": [], "A": ["a.A"]}, when="on")))
    assert not reported(
        spec(
            parts[0],
            component("c", {"S": [], "A": ["a.A", "b.*.A"]}),
            component("b", {"S": [], "A": ["a.A"]}, "n"),
        )
    )
