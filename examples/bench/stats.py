"""What the benchmarks share: medians, intervals, CPU-seconds, tables, JSON.

Rounds of what is compared are interleaved, so that a machine that slows down
slows all of them; medians and a bootstrap say what is left of chance.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import random
import resource
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie, linearly interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median over the rounds, key by key."""
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def ratio_interval(
    pairs: Sequence[tuple[float, float]], resamples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """median(second) / median(first) with its 95% bootstrap interval: (ratio, low, high).

    Pairs are resampled whole: the two of a pair ran one after the other.
    """

    def ratio(sample: Sequence[tuple[float, float]]) -> float:
        first, second = zip(*sample, strict=True)
        return statistics.median(second) / statistics.median(first)

    chance = random.Random(seed)
    ratios = [ratio(chance.choices(pairs, k=len(pairs))) for _ in range(resamples)]
    return ratio(pairs), quantile(ratios, 0.025), quantile(ratios, 0.975)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that their CPU time counts."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_seconds() -> float:
    """CPU-seconds so far of this process and all its descendants, living or ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    total = sum(use.ru_utime + use.ru_stime for use in map(resource.getrusage, kinds))
    children: dict[int, list[tuple[int, int]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            # proc(5): the parent is field 4; own and reaped children's times are 14 to 17
            fields = stat.read_text().rpartition(")")[2].split()
            ticks = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append((int(stat.parent.name), ticks))
    rest = [os.getpid()]
    while rest:
        for pid, ticks in children.get(rest.pop(), ()):
            total += ticks / os.sysconf("SC_CLK_TCK")
            rest.append(pid)
    return total


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, the first left and the others right aligned; the first row is a head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if position else cell.ljust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Write the result with what it was measured on; nothing without a path."""
    if path is None:
        return
    where = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "linux": platform.release(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"where": where, **result}, indent=1) + "\n", "utf-8")
