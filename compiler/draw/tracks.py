"""Tracks: parallel line segments in a gutter or gap, none on top of another.

The same code serves vertical segments (in the gutters between columns) and horizontal
ones (in the gaps between lanes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_MANY = 300  #: above this, the quadratic search for few crossings is left out


@dataclass(slots=True)
class Segment:
    """A line along a gutter, and where other lines meet it.

    ``low`` are the meeting points of lines from the low side (left, or above),
    ``high`` from the other.
    """

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    track: int = 0

    @property
    def start(self) -> float:
        """Where it begins."""
        return min(self.low + self.high)

    @property
    def end(self) -> float:
        """Where it ends."""
        return max(self.low + self.high)


def assign(segments: Sequence[Segment], margin: float) -> int:
    """Give each segment a track; overlapping ones differ.  The number of tracks used.

    The order across the gutter is chosen to have few crossings.
    """
    order: list[Segment] = []
    by_position = sorted(segments, key=lambda s: (s.start, s.end))
    if len(by_position) > _MANY:
        order, by_position = by_position, []
    for segment in by_position:
        best, place = None, 0
        cost = sum(_crossings(segment, other) for other in order)
        for position in range(len(order) + 1):
            if best is None or cost < best:
                best, place = cost, position
            if position < len(order):
                other = order[position]
                cost += _crossings(other, segment) - _crossings(segment, other)
        order.insert(place, segment)
    for number, segment in enumerate(order):
        segment.track = 1 + max(
            (o.track for o in order[:number] if _overlap(o, segment, margin)), default=-1
        )
    return 1 + max((segment.track for segment in order), default=-1)


def _overlap(a: Segment, b: Segment, margin: float) -> bool:
    return a.start <= b.end + margin and b.start <= a.end + margin


def _crossings(left: Segment, right: Segment) -> int:
    """How many lines cross when ``left`` has the lower track."""
    through_right = sum(1 for p in left.high if right.start <= p <= right.end)
    through_left = sum(1 for p in right.low if left.start <= p <= left.end)
    return through_right + through_left
