"""The rules of the hazard pass, one by one."""

from __future__ import annotations

import dataclasses

import pytest
from hazard_specs import change, codes, effects, fork_edge, processes

from build import after, component, spec
from cfac.compiler.model import Spec


def row(*waits: str, count: str | int = "n") -> Spec:
    model = spec(component("x", {"S": [], "A": list(waits), "B": []}, count))
    return effects(model, {"x.A": ["writes file"]})


@pytest.mark.parametrize(
    ("waits", "safe"),
    [
        ([], False), (["x[i-1].A"], True), (["x[i-1].B"], True), (["x[i+1].A"], True),
        (["x[i-2].A"], False), (["x[i-2].A", "x[i-3].A"], False), (["x[0].A"], False),
    ],
)  # fmt: skip
def test_replicas_in_a_row(waits: list[str], safe: bool) -> None:
    assert codes(row(*waits)) == ([] if safe else ["CF501"])
    assert codes(row(*waits, count=1)) == []


def test_a_row_through_another_component() -> None:
    parts = [
        component("d", {"S": [], "T": ["d[i-1].T"]}, "n"),
        component("a", {"S": [], "A": ["d[i].T"]}, "n"),
        component("b", {"S": [], "B": ["a.*.A"]}, "n"),
    ]
    model = effects(spec(*parts), {"a.A": ["writes x"]})
    assert codes(model) == ["CF501"]  # d orders the begins only
    turns = component("d", {"S": [], "T": ["a[i-1].A"]}, "n")
    model = effects(spec(turns, *parts[1:]), {"a.A": ["writes x"], "b.B": ["reads x"]})
    assert codes(model) == []


def test_an_order_through_what_may_be_absent_is_none() -> None:
    def model(when: str = "", replicas: str | None = None) -> Spec:
        through = component("w", {"S": [], "W": ["a.A"]}, replicas, when)
        wait = "w.*.W" if replicas else "w.W"
        parts = [component("a", {"S": [], "A": []}), component("b", {"S": [], "B": [wait]})]
        return effects(spec(*parts, through), {"a.A": ["writes x"], "b.B": ["writes x"]})

    assert codes(model()) == []
    assert codes(model(when="on")) == ["CF501"]
    assert codes(model(replicas="n")) == ["CF501"]


def test_alternatives_do_not_conflict() -> None:
    parts = [
        component(n, {"S": [], "A": []}, None, when) for n, when in [("a", "on"), ("b", "off")]
    ]
    assert codes(effects(spec(*parts), {"a.A": ["writes x"], "b.A": ["writes x"]})) == []


def test_processes() -> None:
    parts = [component(n, {"S": [], "A": []}) for n in "abc"]
    model = effects(spec(*parts), {"a.A": ["starts_threads"], "b.A": ["forks"]})
    assert codes(model) == ["CF502"]
    assert codes(processes(model, b="a")) == []
    # Replicas of a component with a process are processes of their own.
    many = spec(component("w", {"S": [], "A": [], "B": []}, "n"))
    many = effects(many, {"w.A": ["forks"], "w.B": ["starts_threads", "writes env:K"]})
    assert codes(many) == ["CF501", "CF502"]
    assert codes(processes(many, w="")) == []


def test_an_end_before_the_beginning_is_none() -> None:
    parts = [component("a", {"S": [], "A": [], "B": []}), component("f", {"S": [], "F": ["a.A"]})]
    acts = {"a.B": ["starts_threads until a.A"], "f.F": ["forks"]}
    assert codes(effects(spec(*parts), acts)) == ["CF502"]
    acts["a.B"] = ["starts_threads until a.S"]
    assert codes(effects(spec(*parts), acts)) == ["CF502"]


def test_merged_transitions_are_one() -> None:
    parts = [component("a", {"S": [], "A": []}), component("b", {"S": [], "B": ["a.A"]})]
    acts = {"a.A": ["writes x", "forks"], "b.B": ["writes x", "starts_threads"]}
    assert codes(effects(spec(*parts), acts)) == []
    merged = effects(spec(*parts, merges={"g": ["a.A", "b.B"]}), acts)
    assert codes(merged) == ["CF502"]
    many = {"w": {"S": [], "A": [], "B": []}}
    acts = {"w.A": ["writes x"], "w.B": ["writes x"]}
    one = spec(component("w", many["w"], "n"), merges={"g": ["w[i].A", "w[i].B"]})
    assert codes(effects(one, acts)) == ["CF501"] * 3
    one = spec(component("w", many["w"], "n"), merges={"g": ["w.*.A", "w.*.B"]})
    assert codes(effects(one, acts)) == []


def test_what_a_child_inherits() -> None:
    parts = [
        component("a", {"S": [], "A": []}),
        component("b", {"S": [], "W": [], "R": []}),
        component("c", {"S": [], "R": []}),
    ]
    model = processes(spec(*parts), b="a", c="b")
    acts = {"a.A": ["writes env:K"], "b.R": ["reads env:K"], "c.R": ["reads env:K"]}
    assert codes(effects(model, acts)) == ["CF501"] * 2
    # b's own write hides what it inherits, and c inherits that.
    assert codes(effects(model, {**acts, "b.W": ["writes env:K"]})) == ["CF501"] * 2
    late = change(model, ("a", "A"), after=after("c.R"))
    assert codes(effects(late, acts)) == ["CF501", "CF504"]


def test_fork_edges() -> None:
    parts = [
        component("p", {"S": [], "A": [], "B": [], "C": []}),
        component("q", {"S": [], "Q": ["p.A"]}),
        component("c", {"S": [], "Born'": [], "Stock": []}),
    ]
    model = fork_edge(processes(spec(*parts), c="p"), "c", "p.A")
    late = fork_edge(model, "c", "p.A", early=False)
    threads = ["starts_threads"]
    assert codes(effects(model, {"p.B": threads})) == []  # p goes on when the fork is over
    assert codes(effects(late, {"p.B": threads})) == ["CF502"]
    assert codes(effects(model, {"p.A": threads})) == ["CF502"]
    assert codes(effects(model, {"p.A": ["starts_threads until p.A"]})) == []
    assert codes(effects(model, {"p.A": ["starts_threads until p.B"]})) == ["CF502"]
    # Others go on when the state is published, which is before the fork.
    assert codes(effects(model, {"q.Q": threads})) == ["CF502"]
    for good in (model, late):
        cured = change(good, ("q", "Q"), after=after("c.Born"))
        assert codes(effects(cured, {"q.Q": threads})) == []
    merged = dataclasses.replace(
        model, merges=spec(merges={"g": ["p.A", "p.B"]}).merges
    )  # fmt: skip
    assert codes(effects(merged, {"p.B": threads})) == ["CF502"]
    start = fork_edge(model, "c", "p.S")
    assert codes(effects(start, {"p.A": threads})) == []
    assert codes(effects(start, {"q.Q": threads})) == []


@pytest.mark.parametrize("count", [2, "n"])
def test_a_replica_forks_the_child_of_its_index(count: int | str) -> None:
    def model(wait: str, *, early: bool) -> Spec:
        parts = [
            component("p", {"S": [], "A": [], "B": [wait]}, count),
            component("c", {"S": [], "C": []}, count),
        ]
        forked = fork_edge(processes(spec(*parts), p="", c="p"), "c", "p[i].S", early=early)
        return effects(forked, {"p.B": ["starts_threads"]})

    assert codes(model("c[i].C", early=False)) == []  # what hypothesis found refused
    assert codes(model("c.*.C", early=False)) == []
    assert codes(model("p[i].A", early=True)) == []
    for other in ("c[i-1].C", "c[i+1].C", "c[0].C", "p[i].A"):
        assert codes(model(other, early=False)) == ["CF502"]


def test_replicas_that_fork_in_one_process() -> None:
    def model(wait: str) -> Spec:
        parts = [
            component("p", {"S": [], "A": [], "B": [wait]}, 2),
            component("c", {"S": [], "C": []}, 2),
        ]
        late = fork_edge(processes(spec(*parts), c="p"), "c", "p[i].A", early=False)
        return effects(late, {"p.B": ["starts_threads"]})

    assert codes(model("c[i].C")) == ["CF502"]
    assert codes(model("c.*.C")) == []


@pytest.mark.parametrize("count", [2, "n"])
def test_a_forked_replica_inherits_from_its_own_parent(count: int | str) -> None:
    parts = [
        component("p", {"S": [], "A": [], "B": []}, count),
        component("c", {"S": [], "C'": [], "D": []}, count),
        component("d", {"S": [], "C": []}, count),
    ]
    acts = {"p.A": ["writes env:K"], "c.C": ["reads env:K"], "d.C": ["reads env:K"]}
    spawned = processes(spec(*parts), p="", c="p", d="c")
    # Which replica the engine spawns a process from is not declared.
    assert codes(effects(spawned, acts)) == ["CF501"] * 2
    for early in (True, False):
        forked = fork_edge(spawned, "c", "p[i].B", early=early)
        assert codes(effects(forked, acts)) == ["CF501"]
        both = fork_edge(forked, "d", "c[i].D", early=False)
        assert codes(effects(both, acts)) == []
        late = {**acts, "p.A": [], "p.B": ["writes env:K"]}
        assert codes(effects(both, late)) == []
        # In one process, what each replica writes reaches the children of all.
        root = fork_edge(processes(spec(*parts[:2]), c="p"), "c", "p[i].B", early=early)
        shared = {"p.A": ["writes env:K"], "c.C": ["reads env:K"]}
        assert codes(effects(root, shared)) == ["CF501"] * 2


def test_alternatives_beside_a_fork() -> None:
    def model(child: str, parent: str = "") -> Spec:
        parts = [
            component("p", {"S": [], "A": []}, None, parent),
            component("r", {"S": [], "R": []}, None, "off"),
            component("c", {"S": [], "C'": []}, None, child),
        ]
        return fork_edge(processes(spec(*parts), c="p"), "c", "p.A")

    read = {"r.R": ["reads env:K"], "c.C": ["writes env:K"]}
    write = {"r.R": ["writes env:K"], "c.C": ["reads env:K"]}
    assert codes(effects(model("on"), read)) == codes(effects(model("on"), write)) == []
    assert codes(effects(model("off"), read)) == ["CF504"]
    assert codes(effects(model("off"), write)) == ["CF501"]
    # Where p is absent the engine spawns c, and nothing orders the two.
    assert codes(effects(model("", "on"), read)) == []
    assert codes(effects(model("", "on"), write)) == ["CF501"]


def test_an_end_that_is_never_there_with_its_beginning() -> None:
    parts = [
        component("a", {"S": [], "A": []}, None, "on"),
        component("b", {"S": [], "B": []}, None, "off"),
        component("f", {"S": [], "F": ["b.B"]}),
    ]
    acts = {"b.B": ["starts_threads until a.A"], "f.F": ["forks"]}
    assert codes(effects(spec(*parts), acts)) == []
    acts["a.A"], acts["b.B"] = ["starts_threads until b.B"], []
    assert codes(effects(spec(*parts), acts)) == ["CF502"]


def test_environment_at_a_fork() -> None:
    parts = [
        component("p", {"S": [], "A": [], "B": []}),
        component("c", {"S": [], "Born'": ["p.B"], "Stock": []}),
    ]
    model = fork_edge(processes(spec(*parts), c="p"), "c", "p.A")
    late = fork_edge(model, "c", "p.A", early=False)
    write = {"p.B": ["writes env:K"]}
    assert codes(effects(model, {**write, "c.Born": ["reads env:K"]})) == ["CF501"]
    assert codes(effects(late, {**write, "c.Born": ["reads env:K"]})) == []
    # What changed after the fork is sent with the engine's orders.
    assert codes(effects(model, {**write, "c.Stock": ["reads env:K"]})) == []
    assert codes(effects(model, {"p.A": ["writes env:K"], "c.Born": ["reads env:K"]})) == []
    # What was read before the fork stays read.
    late_write = {"c.Born": ["writes env:K"]}
    assert codes(effects(model, {**late_write, "p.A": ["reads env:K"]})) == ["CF504"]
    assert codes(effects(model, {**late_write, "p.B": ["reads env:K"]})) == []


def test_the_end_in_a_neighbour() -> None:
    part = component("x", {"S": [], "A": [], "B": [], "C": []}, "n")
    acts = {"x.A": ["starts_threads until x[i-1].B"], "x.C": ["forks"]}
    assert codes(effects(processes(spec(part), x=""), acts)) == ["CF502"]
    for wait, safe in (("x[i-1].B", True), ("x[i+1].B", False)):
        row = component("x", {"S": [], "A": [], "B": [wait], "C": []}, "n")
        found = codes(effects(processes(spec(row), x=""), acts))
        assert found == ([] if safe else ["CF502"])


def test_no_replicas_have_no_effects() -> None:
    assert codes(row(count=0)) == []


def test_initial_states_have_no_effects() -> None:
    model = spec(component("a", {"S": [], "A": []}))
    assert codes(effects(model, {"a.S": ["reads x"]})) == ["CF505"]


def test_replicas_hold_together_but_none_twice_and_nobody_beside_them() -> None:
    def found(*waits: str, **acts: list[str]) -> list[str]:
        parts = [
            component("old", {"S": [], "A": [], "B": [], "F": []}, "n"),
            component("new", {"S": [], "A": list(waits)}, "m"),
        ]
        return codes(effects(spec(*parts), {k.replace("_", "."): v for k, v in acts.items()}))

    whole, part = ["holds x until old[i].F"], ["holds x together until old[i].F"]
    assert found(old_A=whole) == ["CF503"]
    assert found(old_A=part) == []
    assert found(old_A=part, old_B=part) == ["CF503"]  # twice in one replica
    assert found(old_A=part, old_B=whole) == ["CF503"] * 2  # B's replicas, and A beside B
    new = ["holds x together"]
    assert found(old_A=part, new_A=new) == ["CF503"]
    assert found("old.*.B", old_A=part, new_A=new) == ["CF503"]
    assert found("old[0].F", old_A=part, new_A=new) == ["CF503"]
    assert found("old.*.F", old_A=part, new_A=new) == []
    assert found("old.*.F", old_A=part, new_A=["holds x"]) == ["CF503"]  # new's own replicas
