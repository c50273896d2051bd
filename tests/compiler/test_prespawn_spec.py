"""The strategy ``prespawn``: model, graph, plan, hazards, drawings."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from build import component, ref, span, spec
from cfac.compiler.api import check, load
from cfac.compiler.check import check as check_graph
from cfac.compiler.draw import FORMATS, render
from cfac.compiler.draw.build import collapsed, expanded
from cfac.compiler.draw.json import document
from cfac.compiler.expand import expand
from cfac.compiler.graph import build
from cfac.compiler.model import Component, Effect, Process, Spec, Strategy
from cfac.compiler.plan import compile_plan
from cfac.runtime.plan import Plan

CASES = Path(__file__).parents[1] / "cases" / "spec"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.chdir(CASES / "prespawn")
    found, diagnostics = load("spec.yaml")
    assert found is not None and not diagnostics.items and check(found).ok
    return found


def prespawned(child: Component, at: str) -> Component:
    parent = at.partition(".")[0]
    return replace(child, process=Process(parent, "P", Strategy("prespawn", ref(at)), span()))


def test_plan(model: Spec) -> None:
    plan = compile_plan(model)
    strategies = {
        name: entry["process"]["strategy"]
        for name, entry in plan["components"].items()
        if entry["process"]
    }
    assert strategies == {  # a bare one is at the first state of its parent
        "core": {"prespawn": ["frontend", "Start"]},
        "worker": {"prespawn": ["core", "Imported"]},
        "helper": {"prespawn": ["worker", "Start"]},
    }
    births = [name for name, entry in plan["transitions"].items() if entry["birth"]]
    assert births == ["core.Imported", "worker.Imported"]


def test_only_a_later_state_is_an_edge(model: Spec) -> None:
    graph = build(model)
    found = [
        (graph.nodes[e.source].label(), graph.nodes[e.target].label(), e.schedule)
        for e in graph.edges
        if e.kind == "prespawn"
    ]
    assert found == [("core.Imported", "worker[i].Imported", True)]
    many = expand(model, {"workers": 2})
    assert [
        (many.names[e.source], many.names[e.target]) for e in many.edges if e.kind == "prespawn"
    ] == [
        ("core.Imported", "worker[0].Imported"),
        ("core.Imported", "worker[1].Imported"),
    ]


def test_it_is_part_of_theorem_1_and_not_demanded_of_the_chain() -> None:
    parent = component("p", {"S": [], "A": ["c.X"], "B": []})
    child = prespawned(component("c", {"S": [], "X": []}), "p.B")
    (found,) = check_graph(spec(parent, child)).diagnostics
    assert found.code == "CF301"
    assert any("prespawned at p.B" in note.message for note in found.notes)
    assert found.help is not None and "prespawn: p.B" in found.help
    free = component("p", {"S": [], "A": [], "B": []})
    assert check_graph(spec(free, child, chain="c.X p.A p.B")).diagnostics == []


def test_no_memory_is_shared_so_threads_are_no_hazard() -> None:
    """Where a fork would be refused (CF502), as the parent has threads by then."""
    threads = Effect("starts_threads", None, None, span())
    parent = component("p", {"S": [], "A": [], "B": []})
    states = [replace(s, effects=(threads,)) if s.name == "A" else s for s in parent.states]
    parent = replace(parent, states=tuple(states))
    child = component("c", {"S": [], "X": []})
    forked = replace(child, process=Process("p", "P", Strategy("fork", ref("p.B")), span()))
    assert [d.code for d in check_graph(spec(parent, forked)).diagnostics] == ["CF502"]
    assert check_graph(spec(parent, prespawned(child, "p.B"))).diagnostics == []


@pytest.mark.parametrize("words", [["--numa-bind"], ["--numa_bind"], []])
def test_numa_binding_starts_as_stock(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked worker would not get the binding: numactl stands before the interpreter."""
    found, _ = load(ROOT / "specs/vllm/fast-start.yaml")
    assert found is not None
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", *words])
    plan = Plan.of(compile_plan(found))
    plan.settle()
    assert (plan.unsupported() is not None) is bool(words)


@pytest.mark.parametrize("expand_it", [False, True])
def test_drawings(model: Spec, expand_it: bool) -> None:
    scene = expanded(model, {"workers": 2}) if expand_it else collapsed(model)
    labels = [(e["kind"], e["index"], e["schedule"]) for e in document(scene)["edges"]]
    assert labels.count(("prespawn", "prespawn", True)) == (2 if expand_it else 1)
    for form in FORMATS:
        assert "prespawn" in render(scene, form), form
    target = "worker[0].Imported" if expand_it else "worker.Imported"
    text = render(scene, "svg")
    assert f"{target} begins in a process started at core.Imported" in text


@pytest.mark.parametrize("strategy", ["prespawn", "{prespawn: frontend.CommonImported}", "engine"])
def test_an_overlay_replaces_a_fork(tmp_path: Path, strategy: str) -> None:
    base = (CASES / "schedule" / "spec.yaml").read_text("utf-8")
    (tmp_path / "base.yaml").write_text(base, "utf-8")
    text = "apiVersion: cfac/v1\nkind: StartupGraph\nname: over\ninclude: base.yaml\n"
    text += "bind: {frontend.Start: {publish: {in: tiny.main, at: entry}}}\n"
    start = ", start: []" if strategy == "engine" else ""
    text += f"components: {{core: {{process: {{strategy: {strategy}{start}}}}}}}\n"
    (tmp_path / "spec.yaml").write_text(text, "utf-8")
    found, diagnostics = load(tmp_path / "spec.yaml")
    assert found is not None
    assert not [d for d in diagnostics.errors if d.code != "CF215"], [
        d.message for d in diagnostics
    ]
    process = found.components["core"].process
    assert process is not None and process.strategy.kind == strategy.strip("{").partition(":")[0]


@pytest.mark.parametrize("path", ["specs/vllm/prespawn.yaml", "examples/tiny_engine/prespawn.yaml"])
def test_shipped_specs_prespawn_core_and_workers(path: str) -> None:
    found, diagnostics = load(ROOT / path)
    assert found is not None and not diagnostics.items and check(found).ok
    plan = compile_plan(found)["components"]
    assert plan["core"]["process"]["strategy"] == {"prespawn": ["frontend", "Start"]}
    assert plan["worker"]["process"]["strategy"] == {"prespawn": ["core", "Start"]}
