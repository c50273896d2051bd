"""Merges: several groups at random against contract-then-test, and each message."""

from __future__ import annotations

import dataclasses

import networkx as nx
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import specs

from build import component, ref, span, spec
from cfac.compiler.check import check
from cfac.compiler.cycles import find_cycle
from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.expand import expand
from cfac.compiler.graph import build
from cfac.compiler.merge import group_nodes, is_per_replica, merged, quotient
from cfac.compiler.model import MergeGroup, Spec
from cfac.compiler.theorem1 import prove


@st.composite
def grouped(draw: st.DrawFn) -> Spec:
    model = draw(specs(indices=("*", "i-2", "i-1", "i", "i+1"), forward=True))
    groups: dict[str, list[str]] = {}
    for c, s in model.transitions():
        number = draw(st.integers(0, 5))
        if number > 3:
            continue
        if c.replicas is None:
            groups.setdefault(f"whole{number % 2}", []).append(f"{c.name}.{s.name}")
        elif number < 2:
            groups.setdefault(f"whole{number}", []).append(f"{c.name}.*.{s.name}")
        else:
            name = f"each{number}{c.replicas}"
            groups.setdefault(name, []).append(f"{c.name}[i].{s.name}")
    merges = tuple(MergeGroup(n, tuple(map(ref, of)), span(n)) for n, of in groups.items())
    return dataclasses.replace(model, merges=merges)


def contracted_is_acyclic(model: Spec, n: int) -> bool:
    graph = expand(model, {"n": n, "m": n})
    group: dict[tuple[str, str], MergeGroup] = {
        (r.component, r.state): g for g in model.merges for r in g.of
    }
    digraph = nx.DiGraph()
    digraph.add_nodes_from(range(len(graph.names)))
    digraph.add_edges_from((e.source, e.target) for e in graph.edges)
    assert nx.is_directed_acyclic_graph(digraph)
    blocks: dict[object, set[int]] = {}
    for i, t in enumerate(graph.transitions):
        g = group.get((t.component, t.state))
        if g is None:
            blocks[i] = {i}
        else:
            key = (g.name, t.index if is_per_replica(g) else None)
            blocks.setdefault(key, set()).add(i)
    result = nx.quotient_graph(digraph, list(blocks.values()))
    return nx.is_directed_acyclic_graph(result)


@given(grouped())
@settings(max_examples=250, deadline=None)
def test_agrees_with_contract_then_test(model: Spec) -> None:
    graph = build(model)
    assume(prove(graph).holds)
    out = Diagnostics()
    grouping = group_nodes(model, graph, out)
    assert not out.errors
    contracted = quotient(graph, grouping)
    proof = prove(contracted)
    codes = [d.code for d in check(model).diagnostics]
    assert codes.count("CF321") == len(proof.cyclic)
    if proof.holds:
        assert all(contracted_is_acyclic(model, n) for n in (1, 2, 3, 6))
    for members in proof.cyclic:
        cycle = find_cycle(contracted, members)
        assert cycle.counts is not None
        n = max(cycle.counts.values(), default=1)
        assert not contracted_is_acyclic(model, n)
    assert set(merged(model)) == {g.name for g in model.merges}


def test_two_groups_that_are_fine_alone() -> None:
    parts = [
        component("a", {"S": [], "A": [], "B": []}),
        component("b", {"S": [], "A": [], "B": []}),
        component("c", {"S": [], "A": ["a.A"], "B": []}),
        component("d", {"S": [], "A": ["b.A"], "B": []}),
    ]
    one, two = ["a.A", "d.A"], ["b.A", "c.A"]
    assert check(spec(*parts, merges={"one": one})).ok
    assert check(spec(*parts, merges={"two": two})).ok
    (found,) = check(spec(*parts, merges={"one": one, "two": two})).diagnostics
    assert found.code == "CF321"
    assert "group 'one' after group 'two' after group 'one'" in found.message
    assert [note.message for note in found.notes] == [
        "c.A (group 'two') waits for a.A (group 'one')",
        "d.A (group 'one') waits for b.A (group 'two')",
    ]


def test_per_replica_and_whole() -> None:
    chunk = component("chunk", {"S": [], "A": [], "B": []}, "n")
    dest = component("dest", {"S": [], "A": ["chunk[i].B"]}, "n")
    assert check(spec(chunk, dest, merges={"g": ["chunk[i].B", "dest[i].A"]})).ok
    # All chunks at once, while each waits for its predecessor's later state: not legal.
    ring = component("chunk", {"S": [], "A": ["chunk[i-2].B"], "B": []}, "n")
    assert check(spec(ring, merges={"g": ["chunk[i].A", "chunk[i].B"]})).ok
    (found,) = check(spec(ring, merges={"g": ["chunk.*.A"]})).diagnostics
    assert found.code == "CF321"
    assert "first cyclic with n = 3" in found.message


def codes(model: Spec) -> list[str]:
    return [d.code for d in check(model).diagnostics]


def test_members_that_cannot_be_merged() -> None:
    a = component("a", {"S": [], "A": [], "B": []})
    x = component("x", {"S": [], "A": [], "B": []}, "n")
    y = component("y", {"S": [], "A": []}, "m")
    assert codes(spec(a, x, merges={"g": ["a.A", "x.*.A"], "h": ["a.A", "x.*.B"]})) == ["CF320"]
    assert codes(spec(a, x, merges={"g": ["x.*.A", "x.*.A", "a.A"]})) == ["CF320"]
    assert codes(spec(a, x, merges={"g": ["a.A", "x[i].A"]})) == ["CF322"]
    assert codes(spec(a, x, merges={"g": ["x[i-1].B", "x[i].A"]})) == ["CF322"]
    assert codes(spec(x, y, merges={"g": ["x[i].A", "y[i].A"]})) == ["CF322"]
    assert codes(spec(x, a, merges={"g": ["x[0].A", "a.A"]})) == ["CF322", "CF324"]
    assert codes(spec(a, x, merges={"g": ["a.S", "a.A", "a.B"]})) == ["CF323"]
    assert codes(spec(a, merges={"g": ["a.A"]})) == ["CF324"]
    assert codes(spec(a, merges={"g": ["a.A", "gone.X", "a.B"]})) == []


def test_merged_unites_waits() -> None:
    model = spec(
        component("f", {"S": [], "A": []}),
        component("a", {"S": [], "A": ["f.A", "b.A"], "B": []}),
        component("b", {"S": [], "A": [], "B": ["f.A"]}),
        merges={"g": ["a.A", "b.B", "b.A"]},
    )
    group = merged(model)["g"]
    assert [str(r) for r in group.members] == ["b.A", "a.A", "b.B"] or [
        str(r) for r in group.members
    ] == ["b.A", "b.B", "a.A"]
    assert [(str(w.member), str(w.dependency.ref)) for w in group.waits] == [
        (str(r), "f.A") for r in group.members if str(r) != "b.A"
    ]
    assert sorted(map(str, group.before)) == ["a.S", "b.S"]
    assert not group.per_replica
