"""Several specs as one: united, three-way over a common base, or a contradiction at both places."""

from __future__ import annotations

from pathlib import Path

import pytest

from cfac.compiler.api import check, load, load_together
from cfac.compiler.model import Spec
from cfac.compiler.spec_diff import diff_specs

SPECS = Path(__file__).parents[2] / "specs" / "vllm"
CASE = Path(__file__).parents[1] / "cases" / "codegen" / "compose"
HEAD = "apiVersion: cfac/v1\nkind: StartupGraph\nname: {name}\n"


def together(*paths: Path) -> Spec:
    spec, diagnostics = load_together(paths)
    assert spec is not None
    errors = [*diagnostics.errors, *(d for d in check(spec).diagnostics if d.severity == "error")]
    assert not errors, errors
    return spec


def differences(one: Spec, other: Spec) -> list[str]:
    found = diff_specs(one, other)
    return [f"{d.fact.kind} {d.fact.name}" for d in found if d.fact.name != "name"]


def write(folder: Path, **texts: str) -> list[Path]:
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(HEAD.format(name=name) + text)
    return [folder / f"{name}.yaml" for name in texts]


def codes(*paths: Path) -> list[tuple[str, str]]:
    spec, diagnostics = load_together(paths)
    found = list(diagnostics.errors)
    if spec is not None:
        found += [d for d in check(spec).diagnostics if d.severity == "error"]
    return [(d.code, d.message) for d in found]


@pytest.mark.parametrize("overlay", ["fast-start", "prespawn"])
def test_a_base_and_what_refines_it_are_what_refines_it(overlay: str) -> None:
    alone, _ = load(SPECS / f"{overlay}.yaml")
    assert alone is not None
    for paths in (("process-tree", overlay), (overlay, "process-tree")):
        both = together(*(SPECS / f"{name}.yaml" for name in paths))
        assert differences(alone, both) == []
        assert both.name == "+".join(f"vllm-{name}" for name in paths)


def test_a_spec_with_itself_is_itself() -> None:
    path = SPECS / "process-tree.yaml"
    assert differences(together(path), together(path, path)) == []


def test_two_strategies_for_one_process_collide_at_both_places() -> None:
    _, diagnostics = load_together([SPECS / "fast-start.yaml", SPECS / "prespawn.yaml"])
    found = [d for d in diagnostics.errors if d.code == "CF116"]
    assert {"components.core.process.strategy", "components.worker.process.strategy"} <= {
        d.message.rpartition(" ")[2] for d in found
    }
    for entry in found:
        assert entry.span is not None and entry.span.file.endswith("prespawn.yaml")
        assert entry.notes[0].span is not None
        assert entry.notes[0].span.file.endswith("fast-start.yaml")


def test_the_order_of_the_specs_is_only_that_of_what_nothing_orders() -> None:
    paths = [CASE / name for name in ("spec.yaml", "with-cache.yaml", "with-loader.yaml")]
    one, other = together(*paths), together(*paths[::-1])
    assert set(differences(one, other)) <= {
        "engine tiny",  # the order of its versions
        "chain core.Opened",
        "chain core.Configured",
        "chain frontend.ConfigReady",
        "chain core.Ready",
        "component core",  # Opened and Warm
    }


def test_waits_are_united(tmp_path: Path) -> None:
    paths = write(
        tmp_path,
        a="components:\n  c: {states: [S, {R: {after: x.X}}]}\n  x: {states: [S, X]}\n",
        b="components:\n  c: {states: [S, {R: {after: y.Y}}]}\n  y: {states: [S, Y]}\n",
    )
    spec = together(*paths)
    state = spec.components["c"].states[1]
    assert [str(dependency.ref) for dependency in state.after] == ["x.X", "y.Y"]


def test_a_cycle_of_the_union_is_found(tmp_path: Path) -> None:
    states = "components:\n  c: {{states: [S, {}]}}\n  d: {{states: [S, {}]}}\n"
    paths = write(
        tmp_path,
        a=states.format("{R: {after: d.R}}", "R"),
        b=states.format("R", "{R: {after: c.R}}"),
    )
    assert [code for code, _ in codes(paths[0])] == [code for code, _ in codes(paths[1])] == []
    assert [code for code, _ in codes(*paths)] == ["CF301"]


@pytest.mark.parametrize(
    "a, b, what",
    [
        ("{states: [S, A, B]}", "{states: [S, B, A]}", "components.c.states: the order of A"),
        ("{states: [S, A]}", "{states: [T, A]}", "components.c.states: the first state"),
        ("{states: [S, {A: {cost: 1s}}]}", "{states: [S, {A: {cost: 2s}}]}", "c.states.A.cost"),
        ("{replicas: 2, states: [S, A]}", "{replicas: 3, states: [S, A]}", "components.c.replicas"),
        ("{states: [S, A]}", "{states: S}", "components.c.states"),
    ],
)
def test_contradictions(tmp_path: Path, a: str, b: str, what: str) -> None:
    paths = write(tmp_path, a=f"components:\n  c: {a}\n", b=f"components:\n  c: {b}\n")
    found = [message for code, message in codes(*paths) if code == "CF116"]
    assert len(found) == 1 and found[0].endswith(what)


def test_a_broken_spec_is_reported_once(tmp_path: Path) -> None:
    write(tmp_path, base="components: {c: {states: [S, A], colour: red}}\n")
    paths = write(tmp_path, a="include: base.yaml\n", b="include: base.yaml\n")
    _, diagnostics = load_together(paths)
    assert [d.code for d in diagnostics.sorted()] == ["CF107"]
    assert load_together([tmp_path / "missing.yaml", paths[0]])[0] is None


def test_removed_waits_stay_removed(tmp_path: Path) -> None:
    write(
        tmp_path,
        base="components:\n  c: {states: [S, {R: {after: x.X}}]}\n  x: {states: [S, X]}\n",
    )
    paths = write(
        tmp_path,
        a="include: base.yaml\ncomponents:\n  c: {states: [S, {R: {after: []}}]}\n",
        b="include: base.yaml\ncomponents:\n  y: {states: [S, Y]}\n",
    )
    for order in (paths, paths[::-1]):
        assert together(*order).components["c"].states[1].after == ()
