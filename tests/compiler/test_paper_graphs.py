"""The dependencies of the paper's section 4 (see docs/paper-graphs.md)."""

from __future__ import annotations

import time

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build import component, spec
from cfac.compiler.check import check
from cfac.compiler.diagnostics import Diagnostic
from cfac.compiler.model import Component, Spec


def errors(model: Spec) -> list[Diagnostic]:
    return [d for d in check(model).diagnostics if d.severity == "error"]


def naive(count: int | str = "tensors") -> Component:
    """(T[i], InMem) -> (T[i+1], InDisk) and (T[i], InGPU) -> (T[i+1], InMem)."""
    return component(
        "tensor",
        {"InDisk": [], "InMem": ["tensor[i-1].InMem"], "InGPU": ["tensor[i-1].InGPU"]},
        count,
    )


def refined(
    tensors: list[list[int]], *, ring: int = 0, gathered: bool = False, chunks: int = 0
) -> Spec:
    """Chunks and tensors as in 4.2; ``tensors[t]`` are the chunks of tensor t."""
    count = chunks or 1 + max(max(row) for row in tensors)
    related: list[list[int]] = [[] for _ in range(count)]
    for t, row in enumerate(tensors):
        for c in row:
            related[c].append(t)
    mem = ["chunk[i-1].InMem", *([f"chunk[i-{ring}].Destroyed"] if ring else [])]
    states: dict[str, list[str]] = {"InDisk": [], "InMem": mem, "InGPU": ["chunk[i-1].InGPU"]}
    if gathered:
        states["Gathered"] = []
    states["Destroyed"] = ["tensor[self.tensors].Loaded"]
    ready = "Gathered" if gathered else "InGPU"
    return spec(
        component("chunk", states, count),
        component(
            "tensor", {"Alloc": [], "Loaded": [f"chunk[self.chunks].{ready}"]}, len(tensors)
        ),
        layouts={"tensor.chunks": tensors, "chunk.tensors": related},
    )  # fmt: skip


def test_naive_pipeline() -> None:
    result = check(spec(naive()))
    assert result.diagnostics == []
    assert result.order == ["for i = 0, 1, …: tensor[i].InMem", "for i = 0, 1, …: tensor[i].InGPU"]
    result = check(spec(naive(64)))
    assert result.diagnostics == []
    assert result.order == ["tensor[0..63].InMem", "tensor[0..63].InGPU"]


def test_read_as_arrows_between_states_the_refined_model_is_cyclic() -> None:
    """What docs/paper-graphs.md works through: arrows between states."""
    tensors = [[0], [0, 1], [1]]
    arrows = nx.DiGraph()
    for c in range(2):
        nx.add_path(arrows, [("C", c, s) for s in ("InDisk", "InMem", "InGPU", "Destroyed")])
    for t, row in enumerate(tensors):
        arrows.add_edge(("T", t, "Alloc"), ("T", t, "Loaded"))
        for c in row:
            arrows.add_edge(("C", c, "InGPU"), ("T", t, "Alloc"))
            arrows.add_edge(("T", t, "Loaded"), ("C", c, "InGPU"))
    assert not nx.is_directed_acyclic_graph(arrows)
    cycle = [("C", 0, "InGPU"), ("T", 0, "Alloc"), ("T", 0, "Loaded"), ("C", 0, "InGPU")]
    assert nx.is_path(arrows, cycle)
    assert errors(refined(tensors)) == []


@pytest.mark.parametrize("gathered", [False, True])
def test_refined_chunks(gathered: bool) -> None:
    model = refined([[0], [0, 1, 2], [2], [2, 3]], gathered=gathered)
    result = check(model)
    assert errors(model) == []
    assert result.order is not None
    assert len([name for name in result.order if name.startswith("chunk")]) <= 4 * 4


def test_a_ring_that_is_large_enough() -> None:
    assert errors(refined([[0], [0, 1, 2], [2], [2, 3, 4]], ring=3)) == []


def test_a_tensor_that_spans_more_than_the_ring() -> None:
    model = refined([[0], [0, 1, 2], [2, 3]], ring=2)
    (found,) = errors(model)
    assert found.code == "CF610"
    assert found.message == (
        "the ring of 2 is too small for this layout: cycle: chunk[2].InMem after "
        "chunk[0].Destroyed after tensor[1].Loaded after chunk[2].InGPU after chunk[2].InMem"
    )
    assert [note.message for note in found.notes] == [
        "chunk[2].InGPU comes after chunk[2].InMem: own order of its component",
        "tensor[1].Loaded waits for chunk[2].InGPU (after chunk[self.chunks].InGPU)",
        "chunk[0].Destroyed waits for tensor[1].Loaded (after tensor[self.tensors].Loaded)",
        "chunk[2].InMem waits for chunk[0].Destroyed (after chunk[i-2].Destroyed): ring of 2",
    ]
    assert found.span == found.notes[-1].span
    assert found.help


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 5)), min_size=1, max_size=8),
    st.integers(1, 5),
)
@settings(max_examples=150, deadline=None)
def test_accepted_exactly_where_no_tensor_spans_more_than_the_ring(
    spans: list[tuple[int, int]], ring: int
) -> None:
    tensors = [list(range(first, first + width)) for first, width in spans]
    widest = max(width for _, width in spans)
    assert (errors(refined(tensors, ring=ring)) == []) == (widest <= ring)


def test_pieces_lift_the_limit() -> None:
    """A chunk that waits for its pieces, not for whole tensors, needs no ring that large."""
    tensors = [[0, 1, 2, 3, 4, 5]]
    pieces = [(t, c) for t, row in enumerate(tensors) for c in row]
    model = spec(
        component(
            "chunk",
            {
                "InDisk": [],
                "InMem": ["chunk[i-1].InMem", "chunk[i-2].Destroyed"],
                "InGPU": ["chunk[i-1].InGPU"],
                "Destroyed": ["piece[self.pieces].Copied"],
            },
            6,
        ),
        component("piece", {"Alloc'": [], "Copied'": ["chunk[self.chunk].InGPU"]}, len(pieces)),
        component("tensor", {"Alloc": [], "Loaded": ["piece[self.pieces].Copied"]}, 1),
        layouts={
            "chunk.pieces": [[p for p, (_, c) in enumerate(pieces) if c == k] for k in range(6)],
            "piece.chunk": [[c] for _, c in pieces],
            "tensor.pieces": [list(range(6))],
        },
    )
    assert errors(model) == []


def test_process_tree() -> None:
    """Section 4.1: (parent, Ready) -> (child, Constructed)."""
    model = spec(
        component("frontend", {"Start": [], "Constructed": [], "Ready": []}),
        component("core", {"Start": [], "Constructed": [], "Ready": ["frontend.Ready"]}),
        component("worker", {"Start": [], "Constructed": [], "Ready": ["core.Ready"]}, "tp"),
        chain="frontend.Constructed frontend.Ready core.Constructed core.Ready "
        "worker.*.Constructed worker.*.Ready",
    )
    assert check(model).diagnostics == []


def test_switching() -> None:
    """Section 4.3: (M1, GMemFreed) -> (M2, EnvReady)."""
    model = spec(
        component("old", {"Active": [], "GMemFreed": [], "Destroyed": []}),
        component("new", {"Start": [], "EnvReady": [], "Active": ["old.GMemFreed"]}),
        chain="old.GMemFreed old.Destroyed new.EnvReady new.Active",
    )
    assert check(model).diagnostics == []


def test_a_deeper_queue() -> None:
    """Stage edges chunk[i-D] before chunk[i]; D = 1 is the paper's pipeline."""
    for depth in (1, 4):
        states = {"InDisk": [], "InMem": [f"c[i-{depth}].InMem"], "InGPU": [f"c[i-{depth}].InGPU"]}
        assert errors(spec(component("c", states, "n"))) == []


def test_large_layout_is_linear() -> None:
    def taken(count: int) -> float:
        model = refined([[t // 4, t // 4 + 1] for t in range(count)], ring=3)
        start = time.process_time()
        assert errors(model) == []
        return time.process_time() - start

    few = min(taken(5_000) for _ in range(3))
    assert taken(40_000) < 32 * few  # eight times the graph: a quadratic pass would take 64 times
