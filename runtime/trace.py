"""Writing a run's trace: one file of JSON lines per process.

Every event has ``t`` (CLOCK_MONOTONIC, ns: one clock for all processes of a
machine) and ``e``:

- ``process``: pid, ppid, name, argv, ``started`` (ns, when the process began)
- ``begin`` / ``wait`` / ``publish``: c (component), i (replica or null), s (state);
  a ``wait`` is the moment the component begins to wait, ``begin`` when it goes on
- ``params``: values;  ``failed``: c, s, cause;  ``stall``, ``note``: text

Publishers stamp before they send, waiters after they wake (DESIGN section 5).
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


class TraceWriter:
    """Appends to ``<folder>/<pid>.jsonl``; safe to use in a forked child.

    OSError where the folder cannot be written.
    """

    def __init__(self, folder: str, process_name: str | None = None) -> None:
        self.folder = folder
        self._name = process_name
        self._pid = 0
        self._fd = -1

    def write(self, event: str, /, t: int | None = None, **fields: Any) -> int:
        """Append one event; returns its time stamp."""
        stamp = time.monotonic_ns() if t is None else t
        if self._pid != os.getpid():
            self._open()
        line = json.dumps({"t": stamp, "e": event, **fields}, separators=(",", ":"), default=str)
        os.write(self._fd, line.encode() + b"\n")
        return stamp

    def _open(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)  # the forked parent's
        self._pid = os.getpid()
        path = os.path.join(self.folder, f"{self._pid}.jsonl")
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.write(
            "process",
            pid=self._pid,
            ppid=os.getppid(),
            name=self._name or current_process_name(),
            argv=sys.argv[:64],
            started=process_started(self._pid),
        )

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._fd >= 0 and self._pid == os.getpid():
            os.close(self._fd)
        self._fd, self._pid = -1, 0


def current_process_name() -> str:
    """The multiprocessing name of this process, without importing multiprocessing."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    return str(multiprocessing.current_process().name) if multiprocessing else "MainProcess"


def process_started(pid: int) -> int | None:
    """When a process began, on the monotonic clock, ns (proc(5), field 22); None if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    since_boot = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    asleep = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return since_boot - asleep
