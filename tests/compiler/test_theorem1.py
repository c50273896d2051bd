"""Theorem 1 on random specs: the template's proof against the expansions (oracle: networkx)."""

from __future__ import annotations

import itertools
import re
import time

import networkx as nx
import pytest
from hypothesis import given, settings
from strategies import specs

from build import component, ref, spec
from cfac.compiler.check import check
from cfac.compiler.cycles import count_key, find_cycle, unroll
from cfac.compiler.expand import Expanded, Transition, expand
from cfac.compiler.graph import Graph, build, self_waits
from cfac.compiler.model import Spec
from cfac.compiler.theorem1 import Proof, prove, witness


def acyclic(graph: Expanded) -> bool:
    digraph = nx.DiGraph()
    digraph.add_nodes_from(range(len(graph.names)))
    digraph.add_edges_from((e.source, e.target) for e in graph.edges)
    return nx.is_directed_acyclic_graph(digraph)


def order_of(graph: Graph, proof: Proof, n: int) -> list[Transition]:
    """The witness carried out for a count of n, as `Step` documents it."""
    order: list[Transition] = []
    most = max([n, *(node.count for node in graph.nodes if isinstance(node.count, int))])

    def emit(number: int, index: int | None) -> None:
        node = graph.nodes[number]
        size = node.count if isinstance(node.count, int) else n
        if node.symbolic and not 0 <= (index or 0) < size:
            return
        order.append(Transition(node.component, index if node.symbolic else node.index, node.state))

    for step in proof.steps:
        if step.direction == "none":
            number = step.members[0][0]
            if not graph.nodes[number].state:
                continue
            for i in range(most) if graph.nodes[number].symbolic else [0]:
                emit(number, i)
            continue
        shift = max(shift for _, shift in step.members)
        rounds = range(most + shift) if step.direction == "up" else range(most - 1, -1 - shift, -1)
        for i in rounds:
            for number, back in step.members:
                if graph.nodes[number].symbolic:
                    emit(number, i - back if step.direction == "up" else i + back)
                elif i == back:
                    emit(number, None)
    return order


def assert_valid(order: list[Transition], expanded: Expanded) -> None:
    rank = {transition: i for i, transition in enumerate(order)}
    assert len(rank) == len(order)
    assert set(rank) == set(expanded.ids)
    for edge in expanded.edges:
        source, target = expanded.transitions[edge.source], expanded.transitions[edge.target]
        assert rank[source] < rank[target], (str(source), str(target), [str(t) for t in order])


@given(specs())
@settings(max_examples=400, deadline=None)
def test_template_agrees_with_its_expansions(model: Spec) -> None:
    graph = build(model)
    proof = prove(graph)
    if proof.holds:
        for n, m in [(1, 1), (2, 3), (4, 2), (7, 7)]:
            expanded = expand(model, {"n": n, "m": m})
            assert acyclic(expanded)
            if n == m:
                assert_valid(order_of(graph, proof, n), expanded)
        assert len(set(witness(graph, proof))) == len(proof.steps)
    for members in proof.cyclic:
        cycle = find_cycle(graph, members)
        assert cycle.counts is not None
        counts = {"n": 1, "m": 1, **cycle.counts}
        expanded = expand(model, counts)
        assert not acyclic(expanded)
        # The reported cycle is one of the expansion, and the shortest of its component.
        digraph = nx.DiGraph((e.source, e.target) for e in expanded.edges)
        inside = {graph.nodes[n].name for n in members}
        ids = []
        for number, index in cycle.nodes:
            node = graph.nodes[number]
            ids.append(expanded.ids[Transition(node.component, index, node.state)])
        assert len(set(ids)) == len(ids)
        assert nx.is_simple_path(digraph, ids)
        assert digraph.has_edge(ids[-1], ids[0])
        part = digraph.subgraph(
            i for i, t in enumerate(expanded.transitions) if f"{t.component}.{t.state}" in inside
        )
        # One fewer of any parameter, and this component is acyclic.
        assert len(ids) == _girth(part)
        for name, value in cycle.counts.items():
            if value > 1 and name in ("n", "m"):
                less = expand(model, {**counts, name: value - 1})
                names = {
                    i
                    for i, t in enumerate(less.transitions)
                    if f"{t.component}.{t.state}" in inside
                }
                smaller = nx.DiGraph((e.source, e.target) for e in less.edges).subgraph(names)
                assert nx.is_directed_acyclic_graph(smaller)


def _girth(graph: nx.DiGraph) -> int:
    best = len(graph) + 1
    for source, target in graph.edges:
        if nx.has_path(graph, target, source):
            best = min(best, nx.shortest_path_length(graph, target, source) + 1)
    return best


@given(specs(counts=(None, "n", 2, 3), indices=("*", "0", "1", "i-2", "i-1", "i", "i+1")))
@settings(max_examples=400, deadline=None)
def test_fixed_indices_and_literal_counts_are_sound(model: Spec) -> None:
    graph = build(model)
    proof = prove(graph)
    if not proof.holds:
        return
    for n in (1, 2, 3, 6):
        expanded = expand(model, {"n": n})
        assert acyclic(expanded)
        assert_valid(order_of(graph, proof, n), expanded)


@given(specs(counts=(None, 1, 3, 4), indices=("*", "0", "2", "i-2", "i-1", "i", "i+1", "i+3")))
@settings(max_examples=200, deadline=None)
def test_literal_counts_are_exact(model: Spec) -> None:
    graph = build(model)
    assert prove(graph).holds == acyclic(expand(model, {}))
    assert not any(node.symbolic for node in graph.nodes)


@given(specs(counts=(None,)))
@settings(max_examples=200, deadline=None)
def test_plain_graphs(model: Spec) -> None:
    graph = build(model)
    proof = prove(graph)
    expanded = expand(model, {})
    assert proof.holds == acyclic(expanded)
    digraph = nx.DiGraph((e.source, e.target) for e in expanded.edges)
    cyclic = [c for c in nx.strongly_connected_components(digraph)
              if len(c) > 1 or digraph.has_edge(*[next(iter(c))] * 2)]  # fmt: skip
    assert sorted(map(sorted, cyclic)) == sorted(proof.cyclic)
    result = check(model)
    loops = {n for n, _ in nx.selfloop_edges(digraph)}
    assert sum(d.code == "CF302" for d in result.diagnostics) >= len(loops)
    if not loops:
        assert sum(d.code == "CF301" for d in result.diagnostics) == len(cyclic)


@given(specs(counts=(None, "n", 2), indices=("*", "0", "1", "i-1", "i", "i+2")))
@settings(max_examples=150, deadline=None)
def test_unroll_agrees_with_expand(model: Spec) -> None:
    graph = build(model)
    counts = {count_key(node): 3 for node in graph.nodes if node.symbolic}
    part = unroll(graph, counts)
    expanded = expand(model, {"n": 3})

    def name(at: int) -> str:
        number, index = part.nodes[at]
        return graph.nodes[number].label(index)

    assert {(name(s), name(t)) for s, t in part.edges} == {
        (expanded.names[e.source], expanded.names[e.target]) for e in expanded.edges
    }


def first_cyclic_at_four() -> Spec:
    """+1 and -2: x[i].A after x[i+1].B, x[i].B after y[i-2].., cyclic from four replicas on."""
    return spec(
        component("x", {"S": [], "A": ["y[i+3].A"]}, "workers"),
        component("y", {"S": [], "A": ["x[i-3].A"]}, "workers"),
    )


def test_first_cyclic_at_count_four() -> None:
    model = first_cyclic_at_four()
    assert all(acyclic(expand(model, {"workers": n})) for n in range(4))
    assert not acyclic(expand(model, {"workers": 4}))
    (found,) = check(model).diagnostics
    assert found.code == "CF301"
    assert "first cyclic with workers = 4" in found.message
    assert "x[0].A after y[3].A after x[0].A" in found.message
    assert [note.span for note in found.notes] == [
        model.components["y"].states[1].after[0].ref.span,
        model.components["x"].states[1].after[0].ref.span,
    ]


def test_mixed_offsets_are_cyclic_though_no_simple_cycle_has_sum_zero() -> None:
    model = spec(component("x", {"S": [], "A": ["x[i-1].A", "x[i+2].A"]}, "n"))
    (found,) = check(model).diagnostics
    assert "first cyclic with n = 3" in found.message


@pytest.mark.parametrize(
    ("after", "line"),
    [
        ("x[i-1].B", "for i = 0, 1, …: x[i].A, x[i].B"),
        ("x[i-5].A", "for i = 0, 1, …: x[i].A"),
    ],
)
def test_order_by_index(after: str, line: str) -> None:
    result = check(spec(component("x", {"S": [], "A": [after], "B": []}, "n")))
    assert result.order is not None
    assert result.order[0] == line


def test_descending_and_shifted_orders() -> None:
    result = check(spec(component("x", {"S": [], "A": ["x[i+1].A"]}, "n")))
    assert result.order == ["for i = n-1, n-2, …: x[i].A"]
    model = spec(
        component("x", {"S": [], "A": ["y[i-3].A"]}, "n"),
        component("y", {"S": [], "A": ["x[i+1].A"]}, "n"),
    )
    order = check(model).order
    assert order is not None
    assert re.fullmatch(r"for i = 0, 1, …: x\[i\]\.A, y\[i-[12]\]\.A", order[0])


def test_sequential_workers_that_wait_for_the_first() -> None:
    """A constant index in a component that runs in ascending order is no cycle."""
    model = spec(
        component("x", {"S": [], "A": ["x[i-1].B"], "B": ["x[0].A"]}, "n"),
    )
    assert check(model).order == ["for i = 0, 1, …: x[i].A, x[i].B"]


def test_replicas_collapse_in_the_order() -> None:
    model = spec(
        component("core", {"S": [], "Up": [], "Ready": ["worker.*.Ready"]}),
        component("worker", {"S": [], "Ready": ["core.Up"]}, "tp"),
        component("shard", {"S": [], "Ready": ["core.Up"]}, 3),
    )
    assert check(model).order == ["core.Up", "worker.*.Ready", "shard.*.Ready", "core.Ready"]


def test_a_cycle_names_each_edge_with_its_reason() -> None:
    model = spec(
        component("f", {"S": [], "Ready": ["core.Ready"]}),
        component("core", {"S": [], "Handle": ["f.Ready"], "Ready": ["worker.*.Ready"]}),
        component("worker", {"S": [], "Ready": ["core.Handle"]}, "tp"),
        chain="core.Handle worker.*.Ready core.Ready f.Ready",
    )
    found = [d for d in check(model).diagnostics if d.code == "CF301"]
    assert len(found) == 1
    assert found[0].message == "cycle: f.Ready after core.Ready after core.Handle after f.Ready"
    assert "core.Ready comes after core.Handle: own order" in found[0].notes[1].message
    assert found[0].help is not None
    assert "after: f.Ready" in found[0].help
    assert "chain" in found[0].help


def test_a_wait_against_the_chain_is_reported_once() -> None:
    """The slice's own example: HandleReady waits for frontend.Ready."""
    model = spec(
        component("frontend", {"S": [], "Ready": ["core.Ready"]}),
        component("core", {"S": [], "HandleReady": ["frontend.Ready"], "Ready": []}),
        chain="core.HandleReady core.Ready frontend.Ready",
    )
    assert [d.code for d in check(model).diagnostics] == ["CF301"]
    plain = spec(*model.components.values())
    assert [d.code for d in check(plain).diagnostics] == ["CF301"]


def test_self_wait() -> None:
    for wait, replicas in (("x.A", None), ("x.*.A", "n"), ("x[i].A", "n"), ("x.*.A", 3)):
        result = check(spec(component("x", {"S": [], "A": [wait]}, replicas)))
        assert [d.code for d in result.diagnostics] == ["CF302"]
    assert not self_waits(build(spec(component("x", {"S": [], "A": ["x[i-1].A"]}, 3))))


def test_unknown_names_and_initial_states_are_left_to_names() -> None:
    model = spec(component("x", {"S": [], "A": ["gone.Ready", "x.Nope", "y.S"]}),
                 component("y", {"S": [], "T": []}))  # fmt: skip
    assert check(model).diagnostics == []
    assert str(ref("y.S")) == "y.S"


def test_large_spec_is_checked_in_linear_time() -> None:
    def taken(count: int) -> float:
        parts = []
        for c in range(count):
            waits = [f"c{c - d}.B" for d in (1, 17, 400) if c - d >= 0]
            states = {"S": [], "A": waits, "B": [], "C": [], "D": [], "E": []}
            parts.append(component(f"c{c}", states))
        model = spec(*parts)
        start = time.process_time()
        proof = prove(build(model))
        assert proof.holds
        assert len(proof.steps) == 5 * count
        return time.process_time() - start

    few = min(taken(1_000) for _ in range(3))
    assert taken(8_000) < 32 * few  # eight times the graph: a quadratic pass would take 64 times


def test_many_pairs_go_through_a_join() -> None:
    model = spec(
        component("x", {"S": [], "A": []}, 2000),
        component("y", {"S": [], "A": ["x.*.A"]}, 2000),
    )
    graph = build(model)
    assert len(graph.edges) == 4000
    assert check(model).order == ["x.*.A", "y.*.A"]


def test_all_products_of_two_offsets() -> None:
    for a, b in itertools.product(range(-3, 4), repeat=2):
        model = spec(
            component("x", {"S": [], "A": [f"y[i{a:+d}].A"]}, "n"),
            component("y", {"S": [], "A": [f"x[i{b:+d}].A"]}, "n"),
        )
        assert prove(build(model)).holds == (a + b != 0)
