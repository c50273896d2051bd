"""The process tree below a benchmark: its CPU time, its memory, its end.

All of it is read from /proc.  After :func:`adopt_orphans` every process that a start
leaves without a parent, cfac's owner too, is a descendant of the benchmark.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that their CPU time counts."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> dict[int, tuple[str, int]]:
    """pid -> (state, CPU ticks) of all living or unreaped processes below this one.

    proc(5), /proc/PID/stat: field 3 is the state, 4 the parent, 14 to 17 the own and
    the reaped children's times.
    """
    children: dict[int, list[tuple[int, str, int]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            one = (int(stat.parent.name), fields[0], sum(map(int, fields[11:15])))
            children.setdefault(int(fields[1]), []).append(one)
    found: dict[int, tuple[str, int]] = {}
    rest = [os.getpid()]
    while rest:
        for pid, state, ticks in children.get(rest.pop(), ()):
            found[pid] = (state, ticks)
            rest.append(pid)
    return found


def cpu_seconds(own: bool = True) -> float:
    """CPU-seconds so far of all descendants, living or ended, and of this process itself.

    Without ``own`` only of the descendants: what the benchmark's polls cost is left out.
    """
    kinds = [resource.RUSAGE_CHILDREN, *([resource.RUSAGE_SELF] if own else [])]
    total = sum(use.ru_utime + use.ru_stime for use in map(resource.getrusage, kinds))
    return total + sum(ticks for _, ticks in descendants().values()) / _TICKS


def machine_seconds() -> float:
    """CPU-seconds that the machine was busy since it started, stolen time included.

    proc(5), /proc/stat: user nice system idle iowait irq softirq steal; the guests'
    times that follow are part of user and nice.
    """
    times = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return (sum(times) - times[3] - times[4]) / _TICKS


def pss_mib() -> float:
    """MiB of memory of all descendants, pages that several share divided among them.

    The sum of ``Pss`` in /proc/PID/smaps_rollup (kernel, ABI/testing/procfs-smaps_rollup).
    """
    total = 0
    for pid in descendants():
        with contextlib.suppress(OSError):  # it ended meanwhile, or is a zombie
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def end_descendants(seconds: float) -> list[str]:
    """Let descendants end within ``seconds``, then kill the rest: their command lines.

    Zombies are reaped.  Call it only when no child is left that somebody waits for.
    """
    deadline = time.monotonic() + seconds
    left: dict[int, str] = {}
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        living = [pid for pid, (state, _) in descendants().items() if state not in "ZX"]
        if not living:
            return list(left.values())
        if time.monotonic() > deadline:
            for pid in living:
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    left.setdefault(pid, f"{pid}: {command.decode(errors='replace').strip()}")
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
