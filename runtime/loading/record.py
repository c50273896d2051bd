"""A load in the trace of the run that its process belongs to.

Chunks change their states far too often for a message each: the C library stamps them, and when
the load is over they are written in bulk (DESIGN section 5):

- ``chunks``: ``rows`` of [number of the file in ``files``, offset, length, path, then when the
  chunk was read from on (InDisk ends), was InMem, InGPU (at its destination) and Destroyed], in ns
  of the monotonic clock, null for what did not happen; at most ROWS a line
- ``note``: what was loaded, in words
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Final

from cfac.runtime.loading.loader import Loader
from cfac.runtime.loading.report import Report
from cfac.runtime.run import Run
from cfac.runtime.trace import QuietTrace, TraceWriter

STATES: Final = ("Begin", "InMem", "InGPU", "Destroyed")  # cfac_event_kind
ROWS: Final = 4096

log = logging.getLogger("cfac")


def recording() -> bool:
    """Whether this process belongs to a run."""
    return Run.from_environment() is not None


def record_load(loader: Loader) -> None:
    """Append what the last pass of a loader did; nothing without a run.  Never raises OSError."""
    run = Run.from_environment()
    if run is None:
        return
    report = loader.report
    trace = QuietTrace(TraceWriter(run.folder, announce=False), log.warning)
    files = list(loader.metadata)
    numbers = {path: number for number, path in enumerate(files)}
    rows = _rows(report, numbers)
    stamp = time.monotonic_ns()
    for first in range(0, len(rows), ROWS):
        trace.write("chunks", stamp, files=files, rows=rows[first : first + ROWS])
    trace.write("note", stamp, text=summary(report, len(files)))
    trace.close()


def summary(report: Report, files: int) -> str:
    """One line: how much, how long, by which stages and ways."""
    stages = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in report.stages().items())
    ways = ", ".join(f"{count} {path}" for path, count in report.paths.most_common())
    return (
        f"process {os.getpid()} loaded {report.tensors} tensors, {report.bytes / 1e9:.3f} GB from "
        f"{files} files in {report.seconds:.3f} s ({stages}); chunks: {ways}"
    )


def _rows(report: Report, numbers: dict[str, int]) -> list[list[Any]]:
    times: list[list[int | None]] = [[None] * len(STATES) for _ in report.chunk_paths]
    for ns, kind, index in report.events:
        if kind < len(STATES) and index < len(times):
            times[index][kind] = ns
    return [
        [numbers[file], offset, length, path, *stamps]
        for (file, offset, length, path), stamps in zip(report.chunk_paths, times, strict=True)
    ]
