"""What the benchmarks share: medians, ratios with their intervals, tables, JSON.

Rounds of what is compared are interleaved, so that a machine that slows down
slows all of them, and the two of a round are compared with each other.  The
intervals are distribution-free and exact at small counts, where a bootstrap is too
narrow: a 95% interval of nine pairs holds the truth in at least 95% of all
experiments.  With fewer than six pairs no such interval exists; then the widest one
is given, with the confidence that it really has.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

LEVEL = 0.95
_EXACT = 60  #: pairs up to which the signed-rank distribution is counted out
_NORMAL = 1.959964


class Ratio(NamedTuple):
    """second / first: the estimate, its interval, and the confidence that this has."""

    median: float
    low: float
    high: float
    confidence: float


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


def typical_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """second / first by Hodges and Lehmann: for few pairs.

    The logarithms of the pairs' ratios are taken as symmetric about their middle, which
    they are where both sides scatter alike.  The estimate is the median of their Walsh
    averages (the means of any two), the interval that of Wilcoxon's signed-rank test
    (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3.2 and 3.3).
    """
    logs = [math.log(second / first) for first, second in pairs]
    count = len(logs)
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(count) for j in range(i, count))
    place, confidence = _signed_rank(count)
    low, high = math.exp(walsh[place]), math.exp(walsh[-1 - place])
    return Ratio(math.exp(statistics.median(walsh)), low, high, confidence)


def median_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The median of the pairs' ratios, with the sign test's interval: for many pairs.

    Nothing is assumed but that the pairs are independent (the same book, 3.5 and 3.6).
    """
    ratios = sorted(second / first for first, second in pairs)
    count = len(ratios)
    place, below = 0, 1  # of 2**count orders, in how many at most ``place`` ratios are too low
    ways = count  # and in how many one more
    while place + 1 < count - place - 1 and (below + ways) / 2**count <= (1 - LEVEL) / 2:
        place, below = place + 1, below + ways
        ways = ways * (count - place) // (place + 1)
    confidence = max(0.0, 1 - 2 * below / 2**count)
    return Ratio(statistics.median(ratios), ratios[place], ratios[-1 - place], confidence)


def _signed_rank(count: int) -> tuple[int, float]:
    """How many Walsh averages to leave out at each end, and the confidence this gives."""
    if count > _EXACT:
        mean = count * (count + 1) / 4
        deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return math.floor(mean - _NORMAL * deviation - 0.5), LEVEL
    ways = [1]  # ways[t]: how many sets of ranks have the sum t
    for rank in range(1, count + 1):
        ways = [
            (ways[t] if t < len(ways) else 0) + (ways[t - rank] if t >= rank else 0)
            for t in range(len(ways) + rank)
        ]
    place, below = 0, 1
    while (below + ways[place + 1]) / 2**count <= (1 - LEVEL) / 2:
        place += 1
        below += ways[place]
    return place, max(0.0, 1 - 2 * below / 2**count)


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
