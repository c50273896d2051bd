from cfac.runtime.errors import ComponentFailed
from cfac.runtime.table import StateTable, Waiter, label


def waiter_for(*needs):
    got = []
    return Waiter("someone", tuple(needs), lambda values, error: got.append((values, error))), got


def test_a_waiter_wakes_when_all_its_states_are_published():
    table = StateTable()
    waiter, got = waiter_for(("A", "A1"), ("B", "B1"))
    table.wait(waiter)
    table.set_state("A", "A1", 1)
    assert got == []
    table.set_state("B", "B1", 2)
    assert got == [([1, 2], None)]
    assert table.waiters() == []


def test_a_published_state_is_irreversible():
    table = StateTable()
    assert table.set_state("A", "A1", 1)
    assert not table.set_state("A", "A1", 2)
    waiter, got = waiter_for(("A", "A1"))
    table.wait(waiter)
    assert got == [([1], None)]


def test_a_failure_wakes_everybody_once_and_stays():
    table = StateTable()
    first, got = waiter_for(("A", "A1"), ("B", "B1"))
    table.wait(first)
    failure = ComponentFailed("C", "it broke")
    assert table.fail(failure)
    assert not table.fail(ComponentFailed("D", "later"))
    assert got == [(None, failure)]
    late, got_late = waiter_for(("A", "A1"))
    table.wait(late)
    assert got_late == [(None, failure)]


def test_what_was_published_before_a_failure_can_still_be_awaited():
    table = StateTable()
    table.set_state("A", "A1", "value")
    table.fail(ComponentFailed("C", "it broke"))
    waiter, got = waiter_for(("A", "A1"))
    table.wait(waiter)
    assert got == [(["value"], None)]


def test_a_forgotten_waiter_is_not_woken():
    table = StateTable()
    waiter, got = waiter_for(("A", "A1"))
    table.wait(waiter)
    table.forget(waiter)
    table.set_state("A", "A1")
    assert got == []


def test_labels():
    assert label("core", None) == "core"
    assert label("worker", 0) == "worker[0]"
