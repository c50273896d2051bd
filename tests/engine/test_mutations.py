"""No anchor of the shipped specs is ever put in a wrong place, whatever happens to vLLM."""

from __future__ import annotations

import pytest
from mutation_case import MARK, misplaced
from mutations import MUTATIONS, as_json, everything, run, sample, site_packages, table


def test_every_mutation_once(engine, tmp_path) -> None:
    found = run(site_packages(engine), tmp_path, sample())
    assert found.failures == []
    assert len(found.counts) > 0.9 * len(MUTATIONS)
    assert min(found.total(outcome) for outcome in ("right", "review", "refused")) >= 5


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_mutation_of_every_anchor(engine, tmp_path, record_property) -> None:
    """As ``mutations.py`` with its defaults."""
    found = run(site_packages(engine), tmp_path, everything(pairs=400))
    print("\n".join(table(found)))
    record_property("mutations", as_json(found))
    assert found.failures == []
    assert sum(map(found.total, ("right", "review", "refused"))) > 1500


BEFORE = f"""\
def f():
    a()
    {MARK}()
    if b:
        c({MARK}=1)
"""
AFTER = BEFORE.replace(f"    {MARK}()", f"    {MARK}()\n    _cfac.publish('x')  # cfac:x:publish")
AFTER = AFTER.replace("c(", "_cfac.replaced('x', c)(")


def test_the_judge_takes_what_is_right() -> None:
    assert misplaced(AFTER, BEFORE) == ""


@pytest.mark.parametrize(
    "old, new",
    [
        ("    a()\n", "    a()\n    _cfac.publish('x')  # cfac:x:publish\n"),
        ("    _cfac.publish('x')  # cfac:x:publish\n", ""),
        ("_cfac.replaced('x', c)(", "c("),
        ("a()", "_cfac.replaced('x', a)()"),
        ("if b:\n", "if b:\n        _cfac.publish('x')  # cfac:x:publish\n"),
    ],
)
def test_the_judge_finds_what_is_wrong(old: str, new: str) -> None:
    assert old in AFTER
    assert misplaced(AFTER.replace(old, new), BEFORE) != ""


def test_the_judge_sees_a_changed_line() -> None:
    before = BEFORE.replace(f"c({MARK}=1)", "c()")
    after = before.replace(f"{MARK}()", f"{MARK}()\n    _cfac.publish('x')  # cfac:x:publish")
    assert misplaced(after, before) == ""
    assert misplaced(after.replace("a()", "a(1)"), before) == "other lines changed"
