"""Sites whose 'when' is only known at run time: numbers in the calls, conditions in the plan."""

from __future__ import annotations

import json
import sys

import pytest
from codegen_support import CASES, compile_case

from cfac.runtime.plan import Plan

FAST, SLOW = [["param:fast", "is", True]], [["param:fast", "is", False]]


@pytest.fixture(scope="module")
def plan():
    result, text = compile_case(CASES / "site-when")
    assert result is not None and result.ok, text
    return json.loads(result.plan)


def test_the_plan_lists_conditions_only_where_there_are_any(plan):
    linux = [["platform", "is", "linux"]]
    assert plan["sites"] == {
        "frontend.Loaded:publish": [linux],
        "frontend.Loaded:begin": [linux],
        "core.A:wait": [FAST, SLOW],
        "core.A:begin": [FAST, SLOW],
        "core.A:publish": [FAST, SLOW],  # one site is for another version
        "core.B:publish": [FAST, SLOW],
        "core.C:publish": [[["platform", "is", "win32"]]],
        "core.C:exit": [[["platform", "in", ["linux", "darwin"]]]],
    }
    params, _ = compile_case(CASES / "params")
    assert params is not None
    assert json.loads(params.plan)["sites"] == {}


def test_a_site_applies_unless_a_test_is_known_to_fail(plan, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["engine", "--fast"])
    started = Plan.of(plan)
    assert started.applies("core.A", "wait", 0)
    assert not started.applies("core.A", "wait", 1)
    assert started.applies("core.B", "begin", None)
    started.params.clear()
    assert started.applies("core.A", "wait", 0)
    assert started.applies("core.A", "wait", 1)
    started.data = {**plan, "sites": {"core.A:wait": [[*FAST, ["platform", "is", "none"]]]}}
    assert not started.applies("core.A", "wait", 0)


def test_a_plan_without_sites_is_as_before(plan):
    old = Plan.of({key: value for key, value in plan.items() if key != "sites"})
    assert old.applies("core.A", "wait", 0)
    assert old.at_exit("core", "C")


@pytest.mark.parametrize(("platform", "ends"), [("linux", True), ("win32", False)])
def test_a_state_is_the_processs_end_only_where_that_site_applies(
    plan, monkeypatch, platform, ends
):
    monkeypatch.setattr(sys, "platform", platform)
    assert Plan.of(plan).at_exit("core", "C") is ends
    assert not Plan.of(plan).at_exit("core", "B")
