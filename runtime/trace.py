"""Writing a run's trace: one file of JSON lines per process.

Every event has ``t`` (CLOCK_MONOTONIC, ns: one clock for all processes of a
machine) and ``e``:

- ``process``: pid, ppid, name, argv, ``started`` (ns, when the process began)
- ``begin`` / ``wait`` / ``publish``: c (component), i (replica or null), s (state);
  a ``wait`` is the moment the component begins to wait, ``begin`` when it goes on
- ``given_up``: child (its pid), c;  ``fallback``: c, reason
- ``params``: values;  ``failed``: c, s, cause;  ``stall``, ``note``: text

Publishers stamp before they send, waiters after they wake (DESIGN section 5).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

#: reentrant: a signal handler or a finalizer may record in the midst of a first record
_opening = threading.RLock()


def _after_fork_in_child() -> None:
    global _opening
    _opening = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)


class TraceWriter:
    """Appends to ``<folder>/<pid>.jsonl``; safe to use in threads and in a forked child.

    Without ``announce`` a process that is in the trace already is not told of again.
    OSError where the folder cannot be written.
    """

    def __init__(
        self, folder: str, process_name: str | None = None, *, announce: bool = True
    ) -> None:
        self.folder = folder
        self._name = process_name
        self._announce = announce
        self._pid = 0
        self._fd = -1

    def write(self, event: str, /, t: int | None = None, **fields: Any) -> int:
        """Append one event; returns its time stamp."""
        stamp = time.monotonic_ns() if t is None else t
        if self._pid != os.getpid():
            with _opening:
                if self._pid != os.getpid():
                    self._open()
        self._append(stamp, event, fields)
        return stamp

    def _append(self, stamp: int, event: str, fields: dict[str, Any]) -> None:
        line = json.dumps({"t": stamp, "e": event, **fields}, separators=(",", ":"), default=str)
        os.write(self._fd, line.encode() + b"\n")

    def _open(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)  # the forked parent's
            self._fd = -1
        pid = os.getpid()
        path = os.path.join(self.folder, f"{pid}.jsonl")
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not self._announce and os.fstat(self._fd).st_size > 0:
            self._pid = pid
            return
        process = {
            "pid": pid,
            "ppid": os.getppid(),
            "name": self._name or current_process_name(),
            "argv": sys.argv[:64],
            "started": process_started(pid),
        }
        self._append(time.monotonic_ns(), "process", process)
        self._pid = pid  # from here on no thread comes here again

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._fd >= 0 and self._pid == os.getpid():
            os.close(self._fd)
        self._fd, self._pid = -1, 0


class QuietTrace:
    """A trace that must not hurt: on the first error it ends with a message to ``say``."""

    def __init__(self, writer: TraceWriter, say: Callable[[str], None]) -> None:
        self._writer: TraceWriter | None = writer
        self._say = say

    def write(self, event: str, /, t: int | None = None, **fields: Any) -> None:
        """Append one event, if the trace has not ended."""
        if self._writer is None:
            return
        try:
            self._writer.write(event, t, **fields)
        except OSError as error:
            self._writer = None
            self._say(f"the trace ends here: {error}")

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._writer is not None:
            self._writer.close()


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
