"""The shipped switching spec: memory is taken by the new model once the old one's is free."""

from __future__ import annotations

import itertools
from pathlib import Path

import networkx as nx
import pytest

from cfac.compiler.api import check, compile_plan, load
from cfac.compiler.diagnostics import Diagnostic
from cfac.compiler.expand import Transition, expand
from cfac.runtime.plan import Plan

SPEC = Path(__file__).parents[2] / "specs" / "vllm" / "model-switching.yaml"
WAIT = "after: old.*.GMemFreed, "


def diagnose(path: Path) -> list[Diagnostic]:
    spec, loaded = load(path)
    assert spec is not None
    return [*loaded, *check(spec).diagnostics]


def test_it_is_fine() -> None:
    assert diagnose(SPEC) == []


@pytest.mark.parametrize("instead", ["", "after: old.*.Active, ", "after: 'old[0].GMemFreed', "])
def test_without_the_wait_for_all_ranks_it_is_refused(tmp_path: Path, instead: str) -> None:
    text = SPEC.read_text("utf-8")
    assert text.count(WAIT) == 1
    spec = tmp_path / "spec.yaml"
    spec.write_text(text.replace(WAIT, instead), "utf-8")
    found = [d for d in diagnose(spec) if d.code == "CF503"]
    assert [(d.severity, d.help) for d in found] == [
        ("error", "add `after: old.*.GMemFreed` to new.Active")
    ]
    assert "new[i].Active holds 'device_memory', which old[i].Active may hold too" in (
        found[0].message
    )


def test_the_order_for_each_number_of_ranks() -> None:
    spec, _ = load(SPEC)
    assert spec is not None
    for old, new in itertools.product((1, 2, 4), repeat=2):
        graph = expand(spec, {"old_ranks": old, "new_ranks": new})
        order = nx.DiGraph((edge.source, edge.target) for edge in graph.edges)
        for i, j in itertools.product(range(old), range(new)):
            freed = graph.ids[Transition("old", i, "GMemFreed")]
            active = graph.ids[Transition("new", j, "Active")]
            ready = graph.ids[Transition("new", j, "EnvReady")]
            assert nx.has_path(order, freed, active)
            assert ready not in order or not nx.has_path(order, freed, ready)


def test_no_engine_begins_a_switch() -> None:
    spec, _ = load(SPEC)
    assert spec is not None
    assert Plan.of(compile_plan(spec)).roots() == ["controller"]
