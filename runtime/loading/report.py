"""What a load did: bytes, seconds, and how its chunks were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_BEGIN, _IN_MEM, _PLACED, _DESTROYED = range(4)  # cfac_event_kind
#: A stage of a chunk -> the events that begin and end it.
STAGES = {"read": (_BEGIN, _IN_MEM), "place": (_IN_MEM, _PLACED)}


@dataclass(slots=True)
class Report:
    """Of one iteration or ``load_into``.

    ``bytes`` were handed out or placed, in ``seconds`` from the start of the reading to its end,
    the consumer's own time included.  ``counters`` are the C library's (cfac_counters in
    native/cfac.h).  ``refused`` says why a backend that was asked for is not used.  ``paths``
    counts chunks by how they were read.  With ``trace=True``, ``chunk_paths`` has (file, offset,
    length, path) of each chunk, and ``events`` the time stamps: (ns of the monotonic clock, kind,
    index of chunk or item).
    """

    tensors: int = 0
    bytes: int = 0
    seconds: float = 0.0
    chunk_size: int = 0
    verified: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    paths: Counter[str] = field(default_factory=Counter)
    chunk_paths: list[tuple[str, int, int, str]] = field(default_factory=list)
    events: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Bytes per second, all in all."""
        return self.bytes / self.seconds if self.seconds else 0.0

    def stages(self) -> dict[str, float]:
        """Seconds in which at least one chunk was in a stage; empty without ``trace=True``."""
        times: dict[int, dict[int, int]] = {}
        for ns, kind, index in self.events:
            if kind <= _DESTROYED:
                times.setdefault(index, {})[kind] = ns
        found = {}
        for name, (begin, end) in STAGES.items():
            spans = [(t[begin], t[end]) for t in times.values() if begin in t and end in t]
            if spans:
                found[name] = _union(spans) / 1e9
        return found


def _union(spans: Iterable[tuple[int, int]]) -> int:
    total, reached = 0, 0
    for begin, end in sorted(spans):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total
