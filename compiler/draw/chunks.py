"""The chunks that a run's processes loaded, from the ``chunks`` events of its trace.

runtime/loading/record.py writes them: each row is a chunk, with the times of its states.
"""

from __future__ import annotations

from dataclasses import dataclass

from cfac.runtime.history import History

_NS = 1e9


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of ``length`` bytes of a file.

    Times are seconds from the timeline's origin, None where that did not happen: when it was read
    from on, was in memory, was at its destination, and its buffer was free again.
    """

    process: str
    number: int
    file: str
    offset: int
    length: int
    path: str
    begin: float | None
    in_mem: float | None
    in_gpu: float | None
    destroyed: float | None

    def spans(self) -> list[tuple[str, float, float]]:
        """(stage, begin, end): read, and then until it was where it belongs."""
        found: list[tuple[str, float, float]] = []
        if self.begin is not None and self.in_mem is not None:
            found.append(("read", self.begin, self.in_mem))
        placed = self.destroyed if self.in_gpu is None else self.in_gpu
        if self.in_mem is not None and placed is not None:
            found.append(("place", self.in_mem, placed))
        return found


def read_chunks(history: History, origin: int) -> list[Chunk]:
    """All chunks of a run, in the order of the trace; ``origin`` is in ns."""
    names = {event["pid"]: str(event["name"]) for event in history.of("process")}
    found: list[Chunk] = []
    for number, event in enumerate(history.of("chunks")):
        process = f"{names.get(event['pid'], 'process')} {event['pid']}"
        for row in event["rows"]:
            file, offset, length, path, *stamps = row
            times = [None if t is None else (t - origin) / _NS for t in stamps]
            name = str(event["files"][file]).rpartition("/")[2]
            key = number << 32 | len(found)
            found.append(Chunk(process, key, name, offset, length, path, *times))
    return found
