"""Predicting when to stop the old model: robust, never before T, lossless on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfac.runtime.switching.predict import (
    DEFAULT_T1,
    DEFAULT_T2,
    WINDOW,
    Record,
    SwitchHistory,
    delay,
    predict,
)

#: Examples may take as long as a busy machine makes them.
ON_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECONDS = st.floats(0, 1e6, allow_nan=False)
MODELS = st.sampled_from(["a", "b", "c"])
RECORDS = st.builds(Record, MODELS, MODELS, SECONDS, SECONDS, SECONDS, SECONDS)
HISTORIES = st.lists(RECORDS, max_size=30)


def record(t1: float, t2: float, old: str = "a", new: str = "b", told: float = 0.0) -> Record:
    return Record(old, new, t1, t2, told, 0.0)


@ON_ANY_MACHINE
@given(SECONDS, SECONDS)
def test_the_time_is_the_papers(t1: float, t2: float) -> None:
    start = 1000.0
    assert start + delay(t1, t2) == pytest.approx(max(start + t1 - t2, start))
    assert delay(t1, t2) >= 0


@ON_ANY_MACHINE
@given(HISTORIES, MODELS, MODELS)
def test_an_estimate_lies_within_what_it_was_made_of(
    history: list[Record], old: str, new: str
) -> None:
    found = predict(history, old, new)
    own = [r.t1 for r in history if r.new == new][-WINDOW:]
    times = own or [r.t1 for r in history][-WINDOW:]
    assert found.t1.records == len(times)
    assert found.t1.source == ("model" if own else "any" if times else "default")
    if times:
        assert min(times) <= found.t1.seconds <= max(times)
    else:
        assert (found.t1.seconds, found.t2.seconds) == (DEFAULT_T1, DEFAULT_T2)
        assert found.delay == 0


@ON_ANY_MACHINE
@given(st.lists(st.floats(5, 6), min_size=5, max_size=WINDOW), st.data())
def test_fewer_wild_records_than_half_do_not_matter(
    times: list[float], data: st.DataObject
) -> None:
    wild = data.draw(st.lists(SECONDS, max_size=(len(times) - 1) // 2))
    history = [record(t, t) for t in times[len(wild) :] + wild]
    found = predict(history, "a", "b")
    assert 5 <= found.t1.seconds <= 6 and 5 <= found.t2.seconds <= 6


@ON_ANY_MACHINE
@given(HISTORIES, MODELS, MODELS)
def test_a_right_prediction_wastes_nothing(history: list[Record], old: str, new: str) -> None:
    """The new model waits only where the old one takes longer to stop than it to get there."""
    told = predict(history, old, new)
    right = Record(old, new, told.t1.seconds, told.t2.seconds, told.t1.seconds, told.t2.seconds)
    assert right.early == pytest.approx(0, abs=1e-6)
    assert right.waited == pytest.approx(max(0, right.t2 - right.t1), abs=1e-6)


def test_wait_and_haste_are_told_apart() -> None:
    # Told at EnvReady, though more time was predicted: it waits for t2, and no longer.
    assert (record(5, 2, told=6).waited, record(5, 2, told=6).early) == (2, 0)
    assert (record(5, 2, told=4).waited, record(5, 2, told=4).early) == (1, 0)
    assert (record(5, 2, told=1).waited, record(5, 2, told=1).early) == (0, 2)


@ON_ANY_MACHINE
@given(HISTORIES)
def test_a_history_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, history) -> None:  # type: ignore[no-untyped-def]
    file = SwitchHistory(str(tmp_path_factory.mktemp("h") / "deep" / "switches.jsonl"))
    for one in history:
        file.append(one)
    assert file.read() == history and file.damaged == 0


@pytest.mark.parametrize(
    "damage",
    [
        b'{"old": "a", "new": "b", "t1": 3', b"[]\n", b"\xff\xfe\n", b"null\n", b"7\n",
        b'{"old": 1, "new": "b", "t1": 1, "t2": 1, "predicted_t1": 1, "predicted_t2": 1}\n',
        b'{"old": "a", "new": "b", "t1": NaN, "t2": 1, "predicted_t1": 1, "predicted_t2": 1}\n',
        b'{"old": "a", "new": "b", "t1": -1, "t2": 1, "predicted_t1": 1, "predicted_t2": 1}\n',
        b'{"old": "a", "new": "b", "t1": true, "t2": 1, "predicted_t1": 1, "predicted_t2": 1}\n',
        b'{"old": "a", "new": "b", "t1": 1' + 400 * b"0" + b', "t2": 1, "predicted_t1": 1,'
        b' "predicted_t2": 1}\n',
    ],
)  # fmt: skip
def test_damage_costs_one_line(tmp_path: Path, damage: bytes) -> None:
    file = SwitchHistory(str(tmp_path / "switches.jsonl"))
    file.append(record(1, 2))
    with open(file.path, "ab") as raw:
        raw.write(damage)
    file.append(record(3, 4))
    assert file.read() == [record(1, 2), record(3, 4)]
    assert file.damaged == 1
