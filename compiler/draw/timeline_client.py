"""What somebody outside the engine saw of a start, as one more lane of its timeline.

A trace ends with the engine's last state.  Who waits for the first token waits longer:
for the HTTP server, and for the first forward pass.  A benchmark knows these times by
the same clock, and adds them here, so that a picture shows what its figures say.
"""

from __future__ import annotations

from collections.abc import Sequence

from cfac.compiler.draw.timeline import Bar, Lane, Timeline, one_line


def add(
    timeline: Timeline, name: str, states: Sequence[tuple[str, int]], after: str | None = None
) -> None:
    """Add the lane ``name``: its states in order, with their times by CLOCK_MONOTONIC in ns.

    Each state's bar begins where the one before ended; the first where the transition
    ``after`` ended, for which the lane waited from the beginning.  Without ``after``, and
    where the run never reached it, the first begins with the picture.  The picture then
    ends with the last of all states.  ValueError if the times go backwards.
    """
    gate = next((bar for bar in timeline.bars if bar.name == after and not bar.open), None)
    lane = Lane(one_line(name), one_line(name), None)
    begin = gate.end if gate else 0.0
    for state, nanoseconds in states:
        end = (nanoseconds - timeline.origin) / 1e9
        if end < begin:
            raise ValueError(f"{name}.{state} is {begin - end:.6f} s before what it comes after")
        bar = Bar(lane.name, one_line(state), begin, end)
        if gate and not lane.bars:
            bar = Bar(
                lane.name, bar.state, begin, end, waited=0.0, needs=(gate.name,), gate=gate.name
            )
        lane.bars.append(bar)
        begin = end
    timeline.lanes.append(lane)
    timeline.states += len(lane.bars)
    timeline.total = max(timeline.total, begin)
    timeline.end = max(timeline.end, begin)
