"""Loading: overlays, includes, and that nothing ever raises."""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfac.compiler.api import check, load
from cfac.compiler.model import Spec
from cfac.compiler.schema import DocumentModel

CASES = Path(__file__).parents[1] / "cases" / "spec"
HEAD = "apiVersion: cfac/v1\nkind: StartupGraph\nname: demo\n"


def ok(path: Path | str) -> Spec:
    spec, found = load(path)
    assert spec is not None and not found.errors, [d.message for d in found]
    return spec


def test_overlay_refines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES / "overlay-refines")
    spec = ok("spec.yaml")
    assert spec.name == "refined" and spec.transport == "thread"
    assert sorted(spec.sources) == ["base.yaml", "spec.yaml"]
    tp = spec.params["tp"]
    assert (tp.default, tp.type, tp.sources[0].argv) == (2, "int", ("-tp",))
    core = spec.components["core"]
    assert [s.name for s in core.states] == ["Start", "Constructed", "Warm", "Ready"]
    assert core.process is not None and core.process.name == "EngineCore"
    ready = core.state("Ready")
    assert ready is not None and str(ready.after[0].ref) == "worker.*.Ready"
    assert ready.span.file == "spec.yaml" and ready.after[0].ref.span.file == "base.yaml"
    last = spec.components["frontend"].state("Ready")
    assert last is not None and last.cost == 1.0 and str(last.after[0].ref) == "core.Ready"


def test_bindings_merge_by_kind(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        HEAD + 'engine: {package: e, versions: ">=1"}\n'
        "components: {a: {states: [S, A]}, b: {states: [S, {B: {after: a.A}}]}}\n"
        'bind:\n  a.A: {publish: {in: "m:f", at: exit}}\n'
        '  b.B: {publish: {in: "m:g", at: exit}, begin: {in: "m:g", at: entry}}\n'
    )
    (tmp_path / "spec.yaml").write_text(
        HEAD + 'include: base.yaml\nengine: {versions: "==2.0"}\n'
        'bind: {b.B: {begin: [], wait: {in: "m:g", at: entry}}}\n'
    )
    spec = ok(tmp_path / "spec.yaml")
    assert spec.engine is not None
    assert (spec.engine.package, spec.engine.versions) == ("e", "==2.0")
    binding = spec.bindings[1]
    assert [site.kind for site in binding.sites] == ["wait", "publish"]


def test_includes_are_relative_and_loaded_once(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "base.yaml").write_text(HEAD + "components: {a: {states: [S, A]}}\n")
    for name in ("x", "y"):
        (tmp_path / "lib" / f"{name}.yaml").write_text(HEAD + "include: base.yaml\n")
    (tmp_path / "spec.yaml").write_text(HEAD + "include: [lib/x.yaml, lib/../lib/y.yaml]\n")
    spec = ok(tmp_path / "spec.yaml")
    names = sorted(os.path.relpath(name, tmp_path) for name in spec.sources)
    assert names == ["lib/base.yaml", "lib/x.yaml", "lib/y.yaml", "spec.yaml"]


def test_layers_of_a_diamond_both_apply(tmp_path: Path) -> None:
    state = "components: {{a: {{states: [S, {{A: {{{}}}}}]}}}}\n"
    (tmp_path / "base.yaml").write_text(HEAD + state.format("cost: 1"))
    (tmp_path / "x.yaml").write_text(HEAD + "include: base.yaml\n" + state.format("cost: 2"))
    (tmp_path / "y.yaml").write_text(HEAD + "include: base.yaml\n" + state.format("effects: []"))
    (tmp_path / "spec.yaml").write_text(HEAD + "include: [x.yaml, y.yaml]\n")
    assert ok(tmp_path / "spec.yaml").components["a"].states[1].cost == 2.0


def test_values_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        HEAD + "params: {tp: {type: int, default: 2}, mode: {type: str, default: mp}}\n"
        "components:\n"
        "  a:\n    replicas: tp\n    when: {param: mode, in: [mp, uni], platform: linux}\n"
        "    states: [S, {A: {cost: 20ms, effects: [{holds: gpu, until: B}, {reads: x}]}}, B]\n"
        "  b: {states: [S, {B: {after: {state: a.*.A, schedule: true, reason: r}}}]}\n"
        "chain: [a.*.A, [a.*.B, b.B]]\n"
    )
    spec = ok(path)
    a = spec.components["a"]
    assert a.when is not None
    assert {(t.subject, t.op, t.value) for t in a.when.tests} == {
        ("param:mode", "in", ("mp", "uni")),
        ("platform", "is", "linux"),
    }
    holds, reads = a.states[1].effects
    assert (a.states[1].cost, holds.kind, holds.value) == (0.02, "holds", "gpu")
    assert str(holds.until) == "a[i].B" and (reads.kind, reads.until) == ("reads", None)
    wait = spec.components["b"].states[1].after[0]
    assert (wait.schedule, wait.reason) == (True, "r")
    assert [[str(r) for r in step] for step in spec.chain] == [["a.*.A"], ["a.*.B", "b.B"]]


KEYS = st.sampled_from(
    [
        *DocumentModel.model_fields, "states", "replicas", "when", "after", "aux", "cost",
        "effects", "publish", "wait", "at", "in", "call", "from", "argv", "value", "of", "param",
        "is", "type", "default", "until", "core", "worker", "core.Ready", "holds", "process",
        "spawned_by", "transport", "state",
    ]
)  # fmt: skip
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from(
        ["core", "core.Ready", "worker[i-1].S", "S", "spec.yaml", "a | b", "", "x.*.S"]
    ),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=25,
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.dictionaries(KEYS, TREES, max_size=6))
def test_no_input_raises(tmp_path: Path, tree: dict[str, object]) -> None:
    path = tmp_path / "spec.yaml"
    tree.pop("include", None)
    path.write_text(HEAD + yaml.safe_dump({k: v for k, v in tree.items() if k not in HEAD}))
    spec, found = load(path)
    if spec is not None:
        found.extend(check(spec).diagnostics)
    assert all(d.span is None or d.span.line > 0 for d in found)


@pytest.mark.parametrize("case", sorted(p.parent.name for p in CASES.glob("*/spec.yaml")))
def test_no_truncation_raises(case: str, tmp_path: Path) -> None:
    text = (CASES / case / "spec.yaml").read_text("utf-8")
    path = tmp_path / "spec.yaml"
    for end in range(0, len(text), 37):
        path.write_text(text[:end], "utf-8")
        load(path)


@pytest.mark.parametrize("kind", ["reads: x", "writes: x", "forks: true", "openmp: true"])
def test_only_what_is_held_is_held_together(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "spec.yaml"
    text = HEAD + "components: {a: {states: [S, {A: {effects: [{%s, together: true}]}}]}}\n"
    path.write_text(text % kind)
    _, found = load(path)
    assert [(d.code, d.message) for d in found.sorted()] == [
        ("CF109", "'together' belongs to 'holds'")
    ]
    path.write_text(text % "holds: x")
    assert ok(path).components["a"].states[1].effects[0].together
