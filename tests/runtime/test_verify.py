"""Recorded runs in which one thing is wrong each, and the exact finding."""

from __future__ import annotations

import pytest
from recorded_runs import component, plan, write

from cfac.runtime.history import read_run
from cfac.runtime.verify import Finding, verify

TWO = {"a": component(["Start", "One"]), "b": component(["Start", "Two"])}
AFTER = {"b.Two": ["a.One"]}
CHAIN = [["a.One"], ["b.Two"]]
GOOD = ["publish a.Start", "publish b.Start", "publish a.One", "begin b.Two", "publish b.Two"]


def check(tmp_path, made, steps, *, chain=False, **more):
    found = verify(read_run(write(tmp_path / "run", made, steps, **more)), chain=chain)
    return [(finding.kind, finding.message) for finding in found]


def test_a_good_run_has_no_findings(tmp_path):
    assert check(tmp_path, plan(TWO, AFTER, CHAIN), GOOD, chain=True) == []


def test_a_begin_before_an_end_though_the_publishes_came_in_order(tmp_path):
    steps = ["publish a.Start", "publish b.Start", "begin b.Two", (5.5, "publish a.One"),
             (6, "publish b.Two")]  # fmt: skip
    assert check(tmp_path, plan(TWO, AFTER, CHAIN), steps, chain=True) == [
        ("dependency", "b.Two after a.One: it began 2.500 ms before a.One ended")
    ]


def test_begin_and_end_at_the_same_time_is_in_order(tmp_path):
    steps = [*GOOD[:2], (3, "publish a.One"), (3, "begin b.Two"), (4, "publish b.Two")]
    assert check(tmp_path, plan(TWO, AFTER), steps) == []


@pytest.mark.parametrize("state", ["a.Start", "a.One", "b.Two"])
def test_a_missing_state(tmp_path, state):
    steps = [step for step in GOOD if step != f"publish {state}"]
    found = check(tmp_path, plan(TWO, {}, CHAIN), steps, chain=True)
    assert found == [("state", f"{state} was never published")]


def test_a_component_that_never_appeared(tmp_path):
    assert check(tmp_path, plan(TWO), ["publish a.Start", "publish a.One"]) == [
        ("state", "b.Start was never published"),
        ("state", "b.Two was never published"),
    ]


def test_a_double_publish(tmp_path):
    found = check(tmp_path, plan(TWO, AFTER), [*GOOD, "publish a.One"])
    assert found == [("state", "a.One was published 2 times")]


def test_an_undeclared_state(tmp_path):
    found = check(tmp_path, plan(TWO, AFTER), [*GOOD, "publish a.Odd", "publish c[2].S"])
    assert found == [
        ("state", "a.Odd was published but is not declared"),
        ("state", "c[2].S was published but is not declared"),
    ]


def test_a_component_out_of_its_own_order(tmp_path):
    made = plan({"a": component(["Start", "One", "Two"])})
    steps = ["publish a.Start", (4, "publish a.Two"), (5.25, "publish a.One")]
    assert check(tmp_path, made, steps) == [("order", "a.Two was published 1.250 ms before a.One")]


def test_a_transition_with_after_needs_its_own_begin(tmp_path):
    steps = [step for step in GOOD if not step.startswith("begin")]
    assert check(tmp_path, plan(TWO, AFTER), steps) == [("begin", "b.Two has no recorded begin")]


def test_a_transition_without_after_needs_none(tmp_path):
    steps = [step for step in GOOD if not step.startswith("begin")]
    assert check(tmp_path, plan(TWO), steps) == []


def test_the_first_begin_counts(tmp_path):
    steps = ["publish a.Start", "publish b.Start", "begin b.Two", "publish a.One",
             "begin b.Two", "publish b.Two"]  # fmt: skip
    assert check(tmp_path, plan(TWO, AFTER), steps) == [
        ("dependency", "b.Two after a.One: it began 1.000 ms before a.One ended")
    ]


class TestChain:
    THREE = {name: component(["Start", "S"]) for name in "abc"}

    def found(self, tmp_path, chain, order):
        starts = [f"publish {name}.Start" for name in self.THREE]
        steps = starts + [f"publish {name}.S" for name in order]
        return check(tmp_path, plan(self.THREE, {}, chain), steps, chain=True)

    def test_violation(self, tmp_path):
        message = "b.S ended 1.000 ms before a.S, which stands before it"
        assert self.found(tmp_path, [["a.S"], ["b.S"], ["c.S"]], "bac") == [("chain", message)]

    def test_no_violation_without_the_flag(self, tmp_path):
        made = plan(TWO, {}, [["b.Two"], ["a.One"]])
        assert check(tmp_path, made, GOOD) == []

    def test_compared_with_the_latest_not_only_the_neighbour(self, tmp_path):
        found = self.found(tmp_path, [["a.S"], ["b.S"], ["c.S"]], "bca")
        assert [message.split(",")[0] for _, message in found] == [
            "b.S ended 2.000 ms before a.S",
            "c.S ended 1.000 ms before a.S",
        ]

    @pytest.mark.parametrize("order", ["abc", "bac"])
    def test_a_class_of_the_weak_order_takes_any_order(self, tmp_path, order):
        assert self.found(tmp_path, [["a.S", "b.S"], ["c.S"]], order) == []

    def test_all_of_a_class_stand_before_the_next(self, tmp_path):
        message = "c.S ended 1.000 ms before b.S, which stands before it"
        assert self.found(tmp_path, [["a.S", "b.S"], ["c.S"]], "acb") == [("chain", message)]

    def test_all_replicas(self, tmp_path):
        made = plan({"a": component(["Start", "One"]), "w": component(["Start", "S"], 2)}, {},
                    [["w.*.S"], ["a.One"]])  # fmt: skip
        steps = ["publish a.Start", "publish w[0].Start", "publish w[1].Start",
                 "publish w[0].S", "publish a.One", "publish w[1].S"]  # fmt: skip
        assert check(tmp_path, made, steps, chain=True) == [
            ("chain", "a.One ended 1.000 ms before w[1].S, which stands before it")
        ]


class TestParameters:
    MADE = plan(
        {
            "a": component(["Start", "One"]),
            "w": component(["Start", "Up"], "n", [["param:executor", "is", "mp"]]),
        },
        {"w.Up": ["w[i-1].Up"], "a.One": ["w.*.Up"]},
        [["w.*.Up"], ["a.One"]],
        {"n": 1, "executor": "mp"},
    )
    ALONE = ["publish a.Start", "begin a.One", "publish a.One"]

    def params(self, **values):
        return (0.5, {"e": "params", "values": values})

    def test_an_absent_component_is_not_expected(self, tmp_path):
        steps = [self.params(n=2, executor="uni"), *self.ALONE]
        assert check(tmp_path, self.MADE, steps, chain=True) == []

    def test_an_absent_component_must_not_appear(self, tmp_path):
        steps = [self.params(n=1, executor="uni"), *self.ALONE, "publish w[0].Start"]
        assert check(tmp_path, self.MADE, steps) == [
            ("state", "w[0].Start was published but is not declared")
        ]

    def test_the_recorded_count_counts(self, tmp_path):
        steps = [self.params(n=2, executor="mp"), "publish a.Start", "publish w[0].Start",
                 "begin w[0].Up", "publish w[0].Up", "begin a.One", "publish a.One"]  # fmt: skip
        assert check(tmp_path, self.MADE, steps) == [
            ("state", "w[1].Start was never published"),
            ("state", "w[1].Up was never published"),
        ]

    def test_without_a_params_event_the_runs_argv_counts(self, tmp_path):
        argv = ("engine", "--executor", "uni")
        assert check(tmp_path, self.MADE, self.ALONE, argv=argv) == []

    def test_an_offset_dependency_is_named_with_its_replica(self, tmp_path):
        steps = [
            self.params(n=3, executor="mp"), "publish a.Start",
            *(f"publish w[{k}].Start" for k in range(3)),
            "begin w[0].Up", "publish w[0].Up", "begin w[1].Up", "begin w[2].Up",
            "publish w[1].Up", "publish w[2].Up", "begin a.One", "publish a.One",
        ]  # fmt: skip
        assert check(tmp_path, self.MADE, steps) == [
            ("dependency", "w[2].Up after w[1].Up: it began 1.000 ms before w[1].Up ended")
        ]

    def test_each_late_replica_of_all_is_named(self, tmp_path):
        steps = [
            self.params(n=2, executor="mp"), "publish a.Start", "publish w[0].Start",
            "publish w[1].Start", "begin a.One", "begin w[0].Up", "publish w[0].Up",
            "begin w[1].Up", "publish w[1].Up", "publish a.One",
        ]  # fmt: skip
        assert check(tmp_path, self.MADE, steps) == [
            ("dependency", "a.One after w[0].Up: it began 2.000 ms before w[0].Up ended"),
            ("dependency", "a.One after w[1].Up: it began 4.000 ms before w[1].Up ended"),
        ]


def test_a_failed_run(tmp_path):
    failed = {"e": "failed", "c": "b", "s": "Start", "cause": "ended by signal 9"}
    found = check(tmp_path, plan(TWO), [*GOOD[:3], (9, failed)])
    assert found == [
        ("failed", "the run failed: b in state Start: ended by signal 9"),
        ("state", "b.Two was never published"),
    ]


def test_half_a_line_is_a_finding_and_the_rest_is_read(tmp_path):
    found = check(tmp_path, plan(TWO, AFTER), GOOD, tail='{"t":9000000,"e":"publ')
    assert found == [("trace", "a line is damaged: 7.jsonl:6")]


def test_a_run_without_a_plan(tmp_path):
    history = read_run(write(tmp_path / "run", None, GOOD))
    found = verify(history)
    assert found == [Finding("plan", "the run has no plan: nothing to compare it with")]


def bounded(steps, limit=2):
    """Chunks that are read into ``limit`` buffers; begins and publishes of the read only."""
    chunk = component(["InDisk", "InMem", "Destroyed"], 4)
    made = plan({"chunk": chunk}, {"chunk.InMem": [f"chunk[i-{limit}].Destroyed"]})
    made["transitions"]["chunk.InMem"]["after"][0]["bound"] = True
    return made, [f"publish chunk[{i}].InDisk" for i in range(4)] + steps


def read(i):
    return [f"begin chunk[{i}].InMem", f"publish chunk[{i}].InMem"]


def test_a_bound_is_about_how_many_and_not_which(tmp_path):
    """Chunk 0 keeps its buffer; 1, 2 and 3 use the other one after each other."""
    made, steps = bounded(
        [*read(0), *read(1), "publish chunk[1].Destroyed", *read(2), "publish chunk[2].Destroyed",
         *read(3), "publish chunk[3].Destroyed", "publish chunk[0].Destroyed"]
    )  # fmt: skip
    assert check(tmp_path, made, steps) == []
    del made["transitions"]["chunk.InMem"]["after"][0]["bound"]
    assert [kind for kind, _ in check(tmp_path, made, steps)] == ["dependency"]


def test_a_bound_that_is_exceeded(tmp_path):
    made, steps = bounded(
        [*read(0), *read(1), *read(2), "publish chunk[1].Destroyed", *read(3),
         "publish chunk[3].Destroyed", "publish chunk[0].Destroyed", "publish chunk[2].Destroyed"]
    )  # fmt: skip
    assert check(tmp_path, made, steps) == [
        ("bound", "chunk[2].InMem began while 2 before it had not reached chunk.Destroyed: "
                  "fewer than 2 may"),
        ("bound", "chunk[3].InMem began while 2 before it had not reached chunk.Destroyed: "
                  "fewer than 2 may"),
    ]  # fmt: skip


def test_a_bounded_transition_has_a_begin(tmp_path):
    made, steps = bounded(["publish chunk[2].InMem"])
    assert ("begin", "chunk[2].InMem has no recorded begin") in check(tmp_path, made, steps)
