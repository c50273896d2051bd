"""A timeline as trace-event JSON, which Perfetto and chrome://tracing open.

A run is a process there, a component a thread; times are microseconds.  Chunks that were loaded
overlap, so their stages are asynchronous spans, a track for each process that loaded.
"""

from __future__ import annotations

import json
from typing import Any

from cfac.compiler.draw.chunks import Chunk
from cfac.compiler.draw.timeline import Bar, Lane, Timeline

_Event = dict[str, Any]


def render(timelines: list[Timeline]) -> str:
    """Several runs as one trace; all begin at time 0."""
    events: list[_Event] = []
    thread = 0
    for number, timeline in enumerate(timelines, 1):
        events += _meta("process", number, {}, timeline.name, number)
        tids = {}
        for lane in timeline.lanes:
            thread += 1
            tids[lane.name] = thread
            events += _meta("thread", number, {"tid": thread}, lane.name, thread)
            events += _lane(lane, {"pid": number, "tid": thread})
        for mark in timeline.marks:
            tid = tids.get(mark.component or "")
            place: _Event = {"s": "p", "tid": min(tids.values(), default=0)}
            if tid is not None:
                place = {"s": "t", "tid": tid}
            base = {"ph": "i", "pid": number, "name": mark.kind, "ts": _us(mark.time), **place}
            events.append({**base, "args": {"text": mark.text}})
        for chunk in timeline.chunks:
            events += _chunk(chunk, number)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"


def _us(seconds: float) -> float:
    return round(max(0.0, seconds) * 1e6, 3)


def _meta(kind: str, pid: int, tid: _Event, name: str, order: int) -> list[_Event]:
    base = {"ph": "M", "pid": pid, **tid}
    return [
        {**base, "name": f"{kind}_name", "args": {"name": name}},
        {**base, "name": f"{kind}_sort_index", "args": {"sort_index": order}},
    ]


def _span(base: _Event, name: str, begin: float, end: float, cat: str, args: _Event) -> _Event:
    start = _us(begin)
    span = {"ph": "X", **base, "name": name, "cat": cat, "ts": start}
    return {**span, "dur": round(max(0.0, _us(end) - start), 3), "args": args}


def _lane(lane: Lane, base: _Event) -> list[_Event]:
    events = []
    if lane.born is not None:
        events.append(_span(base, "process start", lane.born, lane.alive, "process", {}))
    for bar in lane.bars:
        if bar.wait > 0 and bar.waited is not None:
            args = {"for": list(bar.needs), "last": bar.gate}
            events.append(_span(base, f"wait: {bar.state}", bar.waited, bar.begin, "wait", args))
    for group in lane.joined():
        name = " + ".join(bar.state for bar in group)
        begin, end = min(bar.begin for bar in group), max(bar.end for bar in group)
        args = {"after": sorted({need for bar in group for need in bar.needs}), **_flags(group)}
        events.append(_span(base, name, begin, end, "transition", args))
    return events


def _chunk(chunk: Chunk, pid: int) -> list[_Event]:
    args = {"file": chunk.file, "offset": chunk.offset, "length": chunk.length, "path": chunk.path}
    events = []
    for stage, begin, end in chunk.spans():
        name = f"{stage}, {chunk.process}"
        base = {"pid": pid, "cat": "chunk", "id": f"{pid}.{chunk.number}.{stage}", "name": name}
        events.append({"ph": "b", **base, "ts": _us(begin), "args": args})
        events.append({"ph": "e", **base, "ts": _us(end)})
    return events


def _flags(group: list[Bar]) -> _Event:
    flags: _Event = {}
    if any(bar.open for bar in group):
        flags["never_ended"] = True
    if not all(bar.known for bar in group):
        flags["begin"] = "not recorded"
    return flags
