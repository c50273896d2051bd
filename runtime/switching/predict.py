"""When to tell the old model to stop: the paper's max{T + t1' - t2', T} (section 4.3).

T is when the new model starts, t1' how long it will take until it needs the device's memory
(EnvReady), t2' how long the old one will take from the word to stop until its memory is
free (drain and free).  Both are predicted from earlier switches in a history file.

The estimate is the median of the last `WINDOW` records of the same model: one outlier (a
cold disk, a hung request) does not move it, and it follows a change within half a window.
Without a record of that model, of any model; without any, a stated default: t1' = t2' = 0,
so that the old model is stopped at T, the earliest there is.  That wastes what could have
overlapped, but makes the new model wait no longer than it must.

History: JSON lines, one object a switch.  Lines that cannot be read are left out and
counted, and the file is never rewritten: a record is one appended line.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

#: How many of the latest records count.
WINDOW = 10
#: t1' and t2' where nothing has been recorded, seconds.
DEFAULT_T1 = 0.0
DEFAULT_T2 = 0.0

Source = Literal["model", "any", "default"]


@dataclass(frozen=True, slots=True)
class Record:
    """One switch that ended well.  All times in seconds.

    ``t1``: new model's start to EnvReady; ``t2``: old model told to stop to memory free.
    ``predicted_t1`` and ``predicted_t2`` are what was thought before it.
    """

    old: str
    new: str
    t1: float
    t2: float
    predicted_t1: float
    predicted_t2: float

    @property
    def waited(self) -> float:
        """How long the new model waited in EnvReady for memory; 0 if it did not."""
        return max(0.0, self.stopped + self.t2 - self.t1)

    @property
    def early(self) -> float:
        """How much earlier than needed the old model was stopped; 0 if it was not."""
        return max(0.0, self.t1 - self.t2 - self.stopped)

    @property
    def stopped(self) -> float:
        """When the old model was told, after T: as predicted, or once the new one waited."""
        return min(delay(self.predicted_t1, self.predicted_t2), self.t1)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted duration, seconds; where it comes from, and of how many records."""

    seconds: float
    source: Source
    records: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """t1' and t2' of one switch to come."""

    t1: Estimate
    t2: Estimate

    @property
    def delay(self) -> float:
        """How long after the new model's start the old one is told to stop, seconds."""
        return delay(self.t1.seconds, self.t2.seconds)


def delay(t1: float, t2: float) -> float:
    """max{T + t1' - t2', T} - T, seconds."""
    return max(t1 - t2, 0.0)


def predict(records: Iterable[Record], old: str, new: str) -> Prediction:
    """t1' of starting ``new`` and t2' of stopping ``old``."""
    known = list(records)
    return Prediction(
        _estimate([(r.new, r.t1) for r in known], new, DEFAULT_T1),
        _estimate([(r.old, r.t2) for r in known], old, DEFAULT_T2),
    )


def _estimate(times: list[tuple[str, float]], model: str, default: float) -> Estimate:
    own = [seconds for name, seconds in times if name == model][-WINDOW:]
    if own:
        return Estimate(statistics.median(own), "model", len(own))
    others = [seconds for _, seconds in times][-WINDOW:]
    if others:
        return Estimate(statistics.median(others), "any", len(others))
    return Estimate(default, "default", 0)


class SwitchHistory:
    """The history file at ``path``; it need not exist yet."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: lines of the file that are no record, as of the last `read`
        self.damaged = 0

    def read(self) -> list[Record]:
        """All records, oldest first.  OSError if the file is there and cannot be read."""
        found: list[Record] = []
        self.damaged = 0
        try:
            with open(self.path, "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        for line in filter(None, lines):
            record = _record(line)
            if record is None:
                self.damaged += 1
            else:
                found.append(record)
        return found

    def append(self, record: Record) -> None:
        """Add one record.  OSError if that cannot be.

        A line that a killed writer left half is ended first, so that this one is whole.
        """
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            line = json.dumps(asdict(record)).encode() + b"\n"
            os.write(descriptor, (b"\n" if torn else b"") + line)
        finally:
            os.close(descriptor)


def _record(line: bytes) -> Record | None:
    """One line as a record; None if it is none: cut short, or no sensible time in it."""
    try:
        data: Any = json.loads(line)
        values = {field.name: data[field.name] for field in fields(Record)}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not all(isinstance(values[name], str) for name in ("old", "new")):
        return None
    for name in ("t1", "t2", "predicted_t1", "predicted_t2"):
        value = values[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        try:
            values[name] = float(value)
        except OverflowError:
            return None
        if not math.isfinite(values[name]) or values[name] < 0:
            return None
    return Record(**values)
