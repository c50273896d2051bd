"""The integer-list algorithms against networkx."""

from __future__ import annotations

import time

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from cfac.compiler.scc import (
    cyclic_components,
    potentials,
    shortest_cycle,
    strongly_connected,
    topological_order,
)


@st.composite
def adjacency(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(1, 12))
    pairs = draw(
        st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=30)
    )
    return [sorted(t for s, t in pairs if s == node) for node in range(size)]


def digraph(successors: list[list[int]]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(successors)))
    graph.add_edges_from((s, t) for s, ts in enumerate(successors) for t in ts)
    return graph


def pairs(cycle: list[int]) -> list[tuple[int, int]]:
    return list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))


@given(adjacency())
@settings(max_examples=200, deadline=None)
def test_agrees_with_networkx(successors: list[list[int]]) -> None:
    graph = digraph(successors)
    components = strongly_connected(successors)
    assert sorted(map(sorted, components)) == sorted(
        map(sorted, nx.strongly_connected_components(graph))
    )
    place = {node: i for i, members in enumerate(components) for node in members}
    assert all(place[s] >= place[t] for s, t in graph.edges)
    order = topological_order(successors)
    assert (order is not None) == nx.is_directed_acyclic_graph(graph)
    if order is not None:
        rank = {node: i for i, node in enumerate(order)}
        assert len(rank) == len(successors)
        assert all(rank[s] < rank[t] for s, t in graph.edges)


@given(adjacency())
@settings(max_examples=200, deadline=None)
def test_shortest_cycle_of_each_component(successors: list[list[int]]) -> None:
    graph = digraph(successors)
    for members in cyclic_components(successors):
        cycle = shortest_cycle(successors, members)
        assert set(cycle) <= set(members)
        assert len(set(cycle)) == len(cycle)
        assert all(
            graph.has_edge(s, t) for s, t in zip(cycle, [*cycle[1:], cycle[0]], strict=False)
        )
        assert len(cycle) == min(map(len, nx.simple_cycles(graph.subgraph(members))))
        assert cycle[0] == min(cycle)


@st.composite
def weighted(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    size = draw(st.integers(1, 6))
    node = st.integers(0, size - 1)
    return size, draw(st.lists(st.tuples(node, node, st.integers(-3, 3)), max_size=14))


@given(weighted())
@settings(max_examples=300, deadline=None)
def test_potentials_exist_iff_all_cycles_are_positive(
    case: tuple[int, list[tuple[int, int, int]]],
) -> None:
    size, edges = case
    graph = nx.DiGraph()
    graph.add_nodes_from(range(size))
    for s, t, d in edges:
        if not graph.has_edge(s, t) or graph[s][t]["d"] > d:
            graph.add_edge(s, t, d=d)
    sums = [
        sum(graph[s][t]["d"] for s, t in zip(c, [*c[1:], c[0]], strict=False))
        for c in nx.simple_cycles(graph)
    ]
    found = potentials(size, edges)
    assert (found is not None) == all(total > 0 for total in sums)
    if found is not None:
        assert all(found[t] + d * (size + 1) > found[s] for s, t, d in edges)


def test_linear_on_large_graphs() -> None:
    def taken(size: int) -> float:
        successors = [[t for t in (n + 1, n + 7, n + 1000) if t < size] for n in range(size)]
        start = time.process_time()
        assert topological_order(successors) is not None
        assert len(strongly_connected(successors)) == size
        successors[-1].append(0)
        assert [len(c) for c in cyclic_components(successors)] == [size]
        return time.process_time() - start

    few = min(taken(10_000) for _ in range(3))
    assert taken(80_000) < 32 * few  # eight times the graph: a quadratic pass would take 64 times
