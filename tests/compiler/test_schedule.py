"""Forks, work of auxiliary states and policies: the model, the graph, the plan, drawings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import specs

from build import component, ref, span, spec
from cfac.compiler.api import check, load
from cfac.compiler.check import check as check_graph
from cfac.compiler.draw import FORMATS, render
from cfac.compiler.draw.build import collapsed, expanded
from cfac.compiler.draw.json import document
from cfac.compiler.expand import expand
from cfac.compiler.graph import build
from cfac.compiler.model import Component, Process, Spec, Strategy
from cfac.compiler.plan import compile_plan
from cfac.compiler.theorem1 import prove

CASES = Path(__file__).parents[1] / "cases" / "spec"


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.chdir(CASES / "schedule")
    model, found = load("spec.yaml")
    assert model is not None and not found.items and check(model).ok
    return model


def forked(child: Component, at: str) -> Component:
    parent = at.partition(".")[0].partition("[")[0]
    return replace(child, process=Process(parent, "P", Strategy("fork", ref(at)), span()))


def test_model(fast: Spec) -> None:
    frontend, core, worker = (fast.components[name] for name in ("frontend", "core", "worker"))
    policy = frontend.policy
    assert policy is not None and (policy.gc, str(policy.until)) == ("frozen", "frontend.Ready")
    imported, idle = frontend.state("CommonImported"), frontend.state("IdleDone")
    assert imported is not None and imported.imports == ("tiny.config", "json")
    assert idle is not None and idle.imports == ("tiny.http",)
    assert str(idle.idle_while) == "worker.*.Ready" and imported.idle_while is None
    assert core.process is not None and core.process.strategy.kind == "fork"
    assert str(core.process.strategy.at) == "frontend.CommonImported"
    assert [site.kind for site in core.process.start] == ["start"]
    assert worker.process is not None and len(worker.process.context) == 2
    assert worker.process.of("context") == worker.process.context
    assert worker.policy is not None and str(worker.policy.until) == "worker[i].Ready"


def test_plan(fast: Spec) -> None:
    plan = compile_plan(fast)
    assert plan["cfac"] == 1
    parts: dict[str, Any] = plan["components"]
    assert parts["frontend"]["process"] is None
    assert parts["frontend"]["policy"] == {"gc": "frozen", "until": "Ready"}
    assert parts["core"]["policy"] is None
    assert parts["core"]["process"] == {
        "spawned_by": "frontend",
        "name": "Core",
        "strategy": {"fork": ["frontend", "CommonImported"]},
        "start": True,
        "context": False,
    }
    assert parts["worker"]["process"]["strategy"] == {"fork": ["core", "Configured"]}
    assert parts["worker"]["process"]["context"] and not parts["worker"]["process"]["start"]
    moves: dict[str, Any] = plan["transitions"]
    assert moves["frontend.CommonImported"]["imports"] == ["tiny.config", "json"]
    assert [name for name, move in moves.items() if move["idle"]] == ["frontend.IdleDone"]
    births = ["core.CoreImported", "core.MoreImported"]
    assert [name for name, move in moves.items() if move["birth"]] == births
    assert moves["core.Ready"]["imports"] == []


def edges(model: Spec) -> set[tuple[str, str]]:
    graph = build(model)
    return {
        (graph.nodes[e.source].label(), graph.nodes[e.target].label())
        for e in graph.edges
        if e.kind == "fork"
    }


def test_fork_edges(fast: Spec) -> None:
    assert edges(fast) == {
        ("frontend.CommonImported", "core.CoreImported"),
        ("core.Configured", "worker[i].Ready"),
        ("worker[i].Ready", "helper[i].Ready"),
    }
    counts = {"workers": 2}
    graph = expand(fast, counts)
    assert {
        (graph.names[e.source], graph.names[e.target]) for e in graph.edges if e.kind == "fork"
    } == {
        ("frontend.CommonImported", "core.CoreImported"),
        ("core.Configured", "worker[0].Ready"),
        ("core.Configured", "worker[1].Ready"),
        ("worker[0].Ready", "helper[0].Ready"),
        ("worker[1].Ready", "helper[1].Ready"),
    }


def test_a_fork_is_not_demanded_of_the_chain() -> None:
    parent = component("p", {"S": [], "A": [], "B": []})
    child = forked(component("c", {"S": [], "X": []}), "p.B")
    assert check_graph(spec(parent, child, chain="c.X p.A p.B")).diagnostics == []
    waiting = component("c", {"S": [], "X": ["p.B"]})
    assert [d.code for d in check_graph(spec(parent, waiting, chain="c.X p.A p.B")).diagnostics]


def test_a_fork_is_part_of_theorem_1() -> None:
    parent = component("p", {"S": [], "A": ["c.X"], "B": []})
    child = forked(component("c", {"S": [], "X": []}), "p.B")
    (found,) = check_graph(spec(parent, child)).diagnostics
    assert found.code == "CF301"
    assert any("forked from p.B" in note.message for note in found.notes)
    assert found.help is not None and "fork: p.B" in found.help


def test_a_cycle_of_forks_and_own_order_alone() -> None:
    """Such a spec is refused by name; the graph's message must hold all the same."""
    child = forked(component("c", {"S": [], "X": [], "Y": []}), "c.Y")
    (found,) = check_graph(spec(child)).diagnostics
    assert found.code == "CF301" and found.help == "fork before c.Y, from an earlier state"


def test_a_fork_is_never_a_redundant_wait() -> None:
    parent = component("p", {"S": [], "A": []})
    child = forked(component("c", {"S": [], "X": ["p.A"]}), "p.A")
    assert check_graph(spec(parent, child)).diagnostics == []


def test_idle_adds_no_edge(fast: Spec) -> None:
    graph = build(fast)
    number = graph.ids["frontend", "IdleDone"][0]
    assert [e.kind for e in graph.edges if e.target == number] == ["own"]


@given(specs(largest=3), st.data())
@settings(max_examples=150, deadline=None)
def test_template_agrees_with_its_expansions(model: Spec, data: st.DataObject) -> None:
    """With one component forked from another, at the same index where both have replicas."""
    names = list(model.components)
    child = model.components[data.draw(st.sampled_from(names))]
    parent = model.components[data.draw(st.sampled_from(names))]
    state = data.draw(st.sampled_from(parent.states)).name
    each = parent.replicas is not None
    if child is parent or (each and parent.replicas != child.replicas):
        return
    at = f"{parent.name}[i].{state}" if each else f"{parent.name}.{state}"
    parts = {**model.components, child.name: forked(child, at)}
    model = replace(model, components=parts)
    holds = prove(build(model)).holds
    for n in (1, 2, 5):
        graph = expand(model, {"n": n, "m": n})
        cyclic = _cyclic(graph.successors)
        assert not (holds and cyclic)
    check_graph(model)  # never raises


def _cyclic(successors: list[list[int]]) -> bool:
    waiting = [0] * len(successors)
    for targets in successors:
        for target in targets:
            waiting[target] += 1
    ready = [node for node, count in enumerate(waiting) if not count]
    for node in ready:
        for target in successors[node]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return len(ready) < len(successors)


@pytest.mark.parametrize("expand_it", [False, True])
def test_drawings(fast: Spec, expand_it: bool) -> None:
    scene = expanded(fast, {"workers": 2}) if expand_it else collapsed(fast)
    labels = [(e["kind"], e["index"], e["schedule"]) for e in document(scene)["edges"]]
    assert labels.count(("fork", "fork", True)) == (5 if expand_it else 3)
    for form in FORMATS:
        text = render(scene, form)
        assert "fork" in text, form
    svg = render(scene, "svg")
    assert "core.CoreImported begins as a fork of frontend.CommonImported" in svg


def test_a_cycle_through_a_fork_is_drawn_red() -> None:
    parent = component("p", {"S": [], "A": ["c.X"], "B": []})
    child = forked(component("c", {"S": [], "X": []}), "p.B")
    marked = [e for e in document(collapsed(spec(parent, child)))["edges"] if e["cyclic"]]
    assert sorted(e["kind"] for e in marked) == ["after", "fork", "own"]


def overlay(tmp_path: Path, text: str) -> Spec | None:
    base = (CASES / "schedule" / "spec.yaml").read_text("utf-8")
    (tmp_path / "base.yaml").write_text(base, "utf-8")
    head = "apiVersion: cfac/v1\nkind: StartupGraph\nname: over\ninclude: base.yaml\n"
    (tmp_path / "spec.yaml").write_text(head + text, "utf-8")
    model, found = load(tmp_path / "spec.yaml")
    assert not found.errors, [d.message for d in found]
    return model


def test_an_overlay_can_take_a_fork_back(tmp_path: Path) -> None:
    text = "components:\n  worker: {process: {strategy: engine, context: []}}\n"
    model = overlay(tmp_path, text)
    assert model is not None
    process = model.components["worker"].process
    assert process is not None and process.strategy == Strategy() and process.context == ()


def test_an_overlay_refines_work(tmp_path: Path) -> None:
    states = "[Start, {CommonImported: {does: {import: [other]}}}, ConfigReady, IdleDone, Ready]"
    model = overlay(tmp_path, f"components:\n  frontend: {{states: {states}}}\n")
    assert model is not None
    state = model.components["frontend"].state("CommonImported")
    assert state is not None and state.aux and state.imports == ("other",)
