"""Giving a forked process the CPU binding and thread count that exec would have given it.

OpenMP runtimes read the environment when they are loaded, so what a parent sets for
its child has no effect in a forked one (it took serving to a tenth of its speed when
it was lost).  The same is reached by sched_setaffinity(2) and omp_set_num_threads on
every OpenMP runtime that is mapped; neither starts a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys

_LIBRARY = re.compile(r"/[^ ]*lib(?:gomp|iomp5|omp)[^/ ]*\.so[^/ ]*")
#: variable -> what matches its list of CPU numbers
_BINDINGS = {
    "OMP_PLACES": re.compile(r"^\{([\d,]+)\}$"),
    "GOMP_CPU_AFFINITY": re.compile(r"^([\d ]+)$"),
    "KMP_AFFINITY": re.compile(r"proclist=\[([\d,]+)\]"),
}


def bound_cpus(environment: dict[str, str]) -> set[int] | None:
    """The CPUs that the environment binds OpenMP threads to; None if it names none."""
    for name, pattern in _BINDINGS.items():
        match = pattern.search(environment.get(name, "").strip())
        if match:
            return {int(word) for word in re.split(r"[ ,]+", match.group(1)) if word}
    return None


def mapped_runtimes() -> list[str]:
    """The paths of the OpenMP libraries mapped in this process."""
    found: dict[str, None] = {}
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            match = _LIBRARY.search(line)
            if match:
                found[match.group(0)] = None
    return list(found)


def restore(environment: dict[str, str] | None = None) -> None:
    """Apply the environment's binding and thread count to this forked process.

    OSError where a CPU may not be used.
    """
    environment = dict(os.environ) if environment is None else environment
    cpus = bound_cpus(environment)
    if cpus:
        os.sched_setaffinity(0, cpus)
    threads = environment.get("OMP_NUM_THREADS", "")
    if not threads.isdigit():
        return
    for path in mapped_runtimes():
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_set_num_threads(int(threads))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(threads))
