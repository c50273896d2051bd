"""Recordings: the file, merging, what is left out, and what ``recorded`` stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfac.compiler.api import check, compile_plan, load
from cfac.compiler.plan import text_hash
from cfac.compiler.recordings import (
    Interval,
    Recording,
    common,
    merged,
    parse,
    reduced,
    render,
    within,
    without,
)

Tree = dict[str, str | None]


def recording(**components: list[tuple[str | None, Tree]]) -> Recording:
    intervals = {
        name: tuple(Interval(until, within(modules)) for until, modules in parts)
        for name, parts in components.items()
    }
    return Recording("tiny", "1.0", 1, intervals)


def names(found: Recording, component: str) -> list[tuple[str | None, list[str]]]:
    return [(i.until, list(i.modules)) for i in found.components[component]]


# -- the file ---------------------------------------------------------------------


def test_a_module_stands_below_the_one_that_imported_it() -> None:
    tree: Tree = {"a": None, "a.x": "a", "a.x.y": "a.x", "b": None, "c": "b"}
    found = recording(core=[("Ready", tree), (None, {"late": None})])
    text = render(found)
    assert json.loads(text)["components"]["core"] == [
        {"modules": ["a", " a.x", "  a.x.y", "b", " c"], "until": "Ready"},
        {"modules": ["late"], "until": None},
    ]
    assert parse(text) == found
    assert render(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "no recording"),
        ("{}", "no recording"),
        ('{"kind": "Imports", "cfac": 2}', "version 2"),
        ('{"kind": "Imports", "cfac": 1}', "damaged"),
        ('{"kind": "Imports", "cfac": 1, "engine": {"package": "t", "version": null}, '
         '"runs": 1, "components": {"c": [{"until": "S", "modules": ["a b"]}]}}', "'a b'"),
        ("nonsense", "Expecting value"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


# -- several starts ---------------------------------------------------------------


def test_merging_keeps_what_both_have_where_the_later_one_had_it() -> None:
    one = recording(core=[("A", {"x": None, "y": None, "llama": None}), ("B", {"z": None})])
    other = recording(core=[("A", {"z": None, "x": None}), ("B", {"y": None, "qwen": None})])
    found = merged(one, other)
    assert found.runs == 2
    assert names(found, "core") == [("A", ["x"]), ("B", ["y", "z"])]
    assert names(merged(other, one), "core") == [("A", ["x"]), ("B", ["z", "y"])]


def test_merging_drops_an_importer_that_only_one_has() -> None:
    one = recording(core=[("A", {"llama": None, "rope": "llama"})])
    found = merged(one, recording(core=[("A", {"qwen": None, "rope": "qwen"})]))
    assert dict(found.components["core"][0].modules) == {"rope": None}


def test_a_state_that_only_the_other_start_has_ends_with_the_next() -> None:
    one = recording(core=[("A", {"x": None}), ("B", {"y": None}), (None, {"z": None})])
    parts: list[tuple[str | None, Tree]] = [("A", {}), ("Aux", {"x": None}), ("B", {})]
    found = merged(one, recording(core=[*parts, ("Odd", {"y": None}), (None, {"z": None})]))
    assert names(found, "core") == [("A", []), ("B", ["x"]), (None, ["y", "z"])]


def test_merging_keeps_a_component_that_one_start_does_not_have() -> None:
    one = recording(core=[("A", {"x": None})])
    both = merged(one, recording(core=[("A", {"x": None})], worker=[("A", {"w": None})]))
    assert names(both, "worker") == [("A", ["w"])]


def test_replicas_keep_what_all_have() -> None:
    lists = [
        (Interval("A", {"x": None, f"rank{k}": None}), Interval(None, {"y": None}))
        for k in range(3)
    ]
    assert [list(i.modules) for i in common(lists)] == [["x"], ["y"]]


def test_without_keeps_what_a_module_imported() -> None:
    found = without(recording(core=[("A", {"a": None, "b": "a", "c": "b"})]), {"b"})
    assert dict(found.components["core"][0].modules) == {"a": None, "c": None}


# -- what is left out of the file ----------------------------------------------------


def test_reduced_leaves_out_what_is_imported_by_the_same_everywhere() -> None:
    found = reduced(
        recording(
            one=[("A", {"p": None, "m": "p", "n": "m", "q": None, "r": "q"})],
            two=[("A", {"p": None, "m": "p", "n": "m", "r": None, "q": None})],
        )
    )
    assert dict(found.components["one"][0].modules) == {"p": None, "q": None, "r": "q"}
    assert dict(found.components["two"][0].modules) == {"p": None, "r": None, "q": None}


@st.composite
def starts(draw: st.DrawFn) -> tuple[dict[str, list[str]], Recording]:
    """Some processes that import modules of one program: module k imports later ones."""
    count = draw(st.integers(3, 9))
    program = {
        f"m{k}": [f"m{n}" for n in range(k + 1, count) if draw(st.booleans())] for k in range(count)
    }
    components = {}
    for name in ("one", "two", "three"):
        done: set[str] = set()
        intervals = []
        for until in ("A", "B", None):
            modules: Tree = {}

            def run(module: str, by: str | None, modules: Tree = modules) -> None:
                if module not in done:  # noqa: B023
                    done.add(module)  # noqa: B023
                    modules[module] = by
                    for child in program[module]:
                        run(child, module, modules)

            for module in draw(st.lists(st.sampled_from(sorted(program)), max_size=2)):
                run(module, None)
            intervals.append(Interval(until, within(modules)))
        components[name] = tuple(intervals)
    return program, Recording("tiny", "1.0", 1, components)


def closure(program: dict[str, list[str]], modules: set[str]) -> set[str]:
    done: set[str] = set()
    stack = list(modules)
    while stack:
        module = stack.pop()
        if module not in done:
            done.add(module)
            stack += program[module]
    return done


@given(starts())
@settings(max_examples=300, deadline=None)
def test_what_is_left_out_is_imported_by_what_stays(
    start: tuple[dict[str, list[str]], Recording],
) -> None:
    """In whatever is made of the components' times: until a state, in common, together."""
    program, full = start
    small = reduced(full)
    assert parse(render(small)) == small

    def of(found: Recording, component: str, end: int) -> set[str]:
        parts = found.components[component][:end]
        return {name for interval in parts for name in interval.modules}

    for end in (1, 2, 3):
        for other in (1, 2, 3):
            (f1, f2, f3), (s1, s2, s3) = (
                (of(r, "one", end), of(r, "two", other), of(r, "three", other))
                for r in (full, small)
            )
            for whole, kept in [
                (f1, s1),
                (f1 & f2, s1 & s2),
                (f1 | f3, s1 | s3),
                (f1 & (f2 | f3), s1 & (s2 | s3)),
            ]:
                assert kept <= whole <= closure(program, kept)


# -- what the word stands for ----------------------------------------------------------

SPEC = """\
apiVersion: cfac/v1
kind: StartupGraph
name: fast
components:
  frontend:
    states:
      - Start
      - Common: {aux: true, does: {import: recorded}}
      - Config
      - Bound
      - Idle: {aux: true, idle: {while: core.Ready, import: [first, recorded]}}
      - Ready: {after: core.Ready}
  core:
    process: {spawned_by: frontend, strategy: {fork: frontend.Common}}
    states: [Start, {Early: {aux: true, does: {import: recorded}}}, Made, Configured, Ready]
  worker:
    process: {spawned_by: core, strategy: {fork: core.Configured}}
    states: [Start, {Ready: {after: core.Configured}}]
"""
FULL = recording(
    frontend=[
        ("Start", {"base": None, "base.in": "base"}),
        ("Config", {"cli": None, "args": "cli", "both": "args", "needed": None}),
        ("Bound", {"client": None}),
        ("Idle", {"polled": None}),
        ("Ready", {"routes": None, "routes.a": "routes"}),
        (None, {"metrics": None, "first": None}),
    ],
    core=[
        ("Start", {"base": None, "base.in": "base"}),
        ("Made", {"engine": None, "both": "engine", "sched": "engine"}),
        ("Configured", {"plugin": None}),
        ("Ready", {"kv": None}),
        (None, {"request": None}),
    ],
    worker=[
        ("Start", {"base": None, "base.in": "base"}),
        ("Ready", {"engine": None, "sched": "engine", "needed": None, "runner": None}),
        (None, {"compile": None}),
    ],
)


def filled(tmp_path: Path, text: str = SPEC, found: Recording = FULL) -> dict[str, list[str]]:
    (tmp_path / "fast.yaml").write_text(text, "utf-8")
    (tmp_path / "fast.imports.json").write_text(render(found), "utf-8")
    spec, diagnostics = load(tmp_path / "fast.yaml")
    assert spec is not None
    messages = [d.message for d in [*diagnostics, *check(spec).diagnostics]]
    assert not messages, messages
    plan: dict[str, Any] = compile_plan(spec)
    return {k: v["imports"] for k, v in plan["transitions"].items() if v["imports"]}


def test_what_the_word_stands_for(tmp_path: Path) -> None:
    assert filled(tmp_path) == {
        # until Config, and only what the core, or the worker that is forked from it, needs
        "frontend.Common": ["base", "both", "needed"],
        # since the recorded Idle; an explicit module comes once
        "frontend.Idle": ["first", "routes", "metrics"],
        # until Made, and what the worker will inherit; without what the frontend has done
        "core.Early": ["engine", "runner"],
    }


def test_a_recording_in_the_reduced_form_means_the_same(tmp_path: Path) -> None:
    assert filled(tmp_path, found=reduced(FULL)) == filled(tmp_path)


def test_idle_begins_at_the_stock_state_before_where_the_state_was_not_recorded(
    tmp_path: Path,
) -> None:
    parts = tuple(i for i in FULL.components["frontend"] if i.until != "Idle")
    found = Recording("tiny", "1.0", 1, {**FULL.components, "frontend": parts})
    assert filled(tmp_path, found=found)["frontend.Idle"] == ["first", "routes", "metrics"]
    polled = (*parts[:3], Interval("Ready", {"polled": None}), *parts[4:])
    found = Recording("tiny", "1.0", 1, {**FULL.components, "frontend": polled})
    assert filled(tmp_path, found=found)["frontend.Idle"] == ["first", "polled", "metrics"]


def test_a_prespawned_process_inherits_nothing(tmp_path: Path) -> None:
    """Its parent's imports are its own to do, and its children's are not the parent's."""
    text = SPEC.replace("{fork: frontend.Common}", "{prespawn: frontend.Common}")
    found = filled(tmp_path, text.replace("{fork: core.Configured}", "engine"))
    assert found["core.Early"] == ["base", "engine"]
    assert found["frontend.Common"] == ["base", "cli", "needed"]


def test_a_process_forked_later_inherits_all_that_it_needs(tmp_path: Path) -> None:
    text = SPEC.replace("{fork: frontend.Common}", "{fork: frontend.Config}")
    early = "{Early: {aux: true, does: {import: recorded}}}, "
    found = filled(tmp_path, text.replace(early, ""))
    expected = ["base", "cli", "needed", "engine", "plugin", "kv", "runner"]
    assert found["frontend.Common"] == expected


def test_a_state_with_nothing_left_to_do_is_an_error(tmp_path: Path) -> None:
    text = SPEC.replace("{fork: frontend.Common}", "{fork: frontend.Config}")
    with pytest.raises(AssertionError, match=r"nothing to import for core\.Early"):
        filled(tmp_path, text)


def test_the_plan_says_which_are_recorded_and_of_which_file(tmp_path: Path) -> None:
    filled(tmp_path)
    spec, _ = load(tmp_path / "fast.yaml")
    assert spec is not None
    plan = compile_plan(spec)
    moves = plan["transitions"]
    assert {k: v["recorded"] for k, v in moves.items() if "recorded" in v} == {
        "frontend.Common": [0, 3],
        "frontend.Idle": [1, 3],
        "core.Early": [0, 2],
    }
    text = (tmp_path / "fast.imports.json").read_text("utf-8")
    assert plan["hashes"]["fast.imports.json"] == text_hash(text)


def test_the_recording_of_the_main_spec_comes_first(tmp_path: Path) -> None:
    filled(tmp_path)
    over = tmp_path / "over.yaml"
    over.write_text(
        "apiVersion: cfac/v1\nkind: StartupGraph\nname: over\ninclude: fast.yaml\n", "utf-8"
    )
    spec, _ = load(over)
    assert spec is not None and [Path(name).name for name in spec.recordings] == [
        "fast.imports.json"
    ]
    (tmp_path / "over.imports.json").write_text(render(FULL), "utf-8")
    spec, _ = load(over)
    assert spec is not None and [Path(name).name for name in spec.recordings] == [
        "over.imports.json"
    ]


def test_a_circle_of_forks_is_an_error_and_not_an_endless_search(tmp_path: Path) -> None:
    text = SPEC.replace(
        "  frontend:\n",
        "  frontend:\n    process: {spawned_by: worker, strategy: {fork: worker.Ready}}\n",
    )
    (tmp_path / "fast.yaml").write_text(text, "utf-8")
    (tmp_path / "fast.imports.json").write_text(render(FULL), "utf-8")
    spec, _ = load(tmp_path / "fast.yaml")
    assert spec is not None
    assert "CF301" in {d.code for d in check(spec).diagnostics}
