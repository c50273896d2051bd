"""A timeline for the terminal: a line per transition, with its bar."""

from __future__ import annotations

from dataclasses import dataclass

from cfac.compiler.draw.timeline import Bar, Lane, Timeline, duration

_MIN_WIDTH, _MAX_WIDTH = 60, 140
_NAME_LIMIT = 26


@dataclass(frozen=True, slots=True)
class Pens:
    """The characters to draw with."""

    bar: str
    wait: str
    lead: str
    open: str
    point: str
    micro: str
    dots: str


UNICODE = Pens(bar="█", wait="·", lead="░", open="▒", point="▏", micro="µs", dots="…")
ASCII = Pens(bar="#", wait=".", lead=":", open="?", point="|", micro="us", dots="~")


def pens_for(encoding: str | None) -> Pens:
    """The best pens that an output's encoding can show."""
    try:
        "".join((UNICODE.bar, UNICODE.wait, UNICODE.lead, UNICODE.open, "▏µ…")).encode(
            encoding or "ascii"
        )
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def render(timeline: Timeline, width: int = 100, pens: Pens = UNICODE) -> str:
    """The run in lines of at most ``width`` columns, where names and notes allow."""
    width = max(_MIN_WIDTH, min(width, _MAX_WIDTH))
    names = [len(lane.name) for lane in timeline.lanes]
    names += [len(bar.state) + 2 for bar in timeline.bars]
    column = min(max([12, *names]), _NAME_LIMIT)
    chart = _Chart(timeline, column, width - column - 20, pens)
    lines = [_cut(f"run {timeline.id}  {timeline.argv}", width, pens)]
    if timeline.name != timeline.id:
        lines.insert(0, timeline.name)
    lines += [_outcome(timeline, pens), ""]
    if timeline.lanes:
        lines.append(f"{'':{column}} {'end':>9} {'took':>8} {chart.axis()}")
    for lane in timeline.lanes:
        lines += chart.lane(lane)
    below = _below(timeline, pens)
    if below:
        lines += ["", *below]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _outcome(timeline: Timeline, pens: Pens) -> str:
    if timeline.complete:
        text = f"all {timeline.states} states in {duration(timeline.total, pens.micro)}"
    else:
        count = timeline.states + len(timeline.missing)
        text = f"NOT READY: {timeline.states} of {count} states"
    if timeline.before is not None:
        text += f"; its process had run for {duration(timeline.before, pens.micro)} before"
    return text


def _cut(text: str, width: int, pens: Pens) -> str:
    return text if len(text) <= width else text[: width - 1] + pens.dots


class _Chart:
    def __init__(self, timeline: Timeline, column: int, room: int, pens: Pens) -> None:
        self.column, self.room, self.pens = column, room, pens
        self.end = timeline.end

    def _x(self, time: float) -> int:
        return min(self.room - 1, max(0, int(time / self.end * self.room)))

    def axis(self) -> str:
        """Zero at the left, the end at the right."""
        right = duration(self.end, self.pens.micro)
        return "0" + right.rjust(self.room - 1)

    def lane(self, lane: Lane) -> list[str]:
        """The component's name with its process's start, then a line per transition."""
        picture, took = "", ""
        if lane.born is not None:
            a, b = self._x(lane.born), self._x(lane.alive)
            picture = " " * a + self.pens.lead * max(1, b - a)
            took = duration(lane.alive - lane.born, self.pens.micro)
        lines = [self._line(_cut(lane.name, self.column, self.pens), "", took, picture)]
        for bar in lane.bars:
            name = _cut(f"  {bar.state}", self.column, self.pens)
            if bar.kind == "initial":
                took = ""
            else:
                took = "never" if bar.open else duration(bar.end - bar.begin, self.pens.micro)
            end = "" if bar.open else f"{bar.end:.3f}"
            lines.append(self._line(name, end, took, self._picture(bar)))
        if not lane.bars and lane.born is None:
            lines.append(self._line("  (never appeared)", "", "", ""))
        return lines

    def _line(self, name: str, end: str, took: str, picture: str) -> str:
        return f"{name:{self.column}} {end:>9} {took:>8} {picture}"

    def _picture(self, bar: Bar) -> str:
        left = self._x(bar.begin)
        right = max(left + 1, self._x(bar.end))
        if not bar.begun:
            body = ""
        elif bar.kind == "initial":
            body = self.pens.point
        else:
            body = (self.pens.open if bar.open else self.pens.bar) * (right - left)
        wait = left
        if bar.waited is not None:
            wait = min(left, self._x(bar.waited))
            if not bar.begun:
                left = right
        return " " * wait + self.pens.wait * (left - wait) + body


def _below(timeline: Timeline, pens: Pens) -> list[str]:
    lines = []
    for mark in timeline.marks:
        if mark.kind == "ended" and (timeline.complete or mark.text.endswith("exit code 0")):
            continue
        when = f"{mark.time:.3f} s"
        if mark.kind == "stall":
            lines.append(f"stall, {when}:")
            lines += [f"  {line}" for line in mark.text.splitlines()]
        else:
            first, *rest = mark.text.splitlines() or [""]
            lines.append(f"{mark.kind}, {when}: {first}")
            lines += [f"  {line}" for line in rest]
    if timeline.missing:
        shown = timeline.missing[:20]
        more = len(timeline.missing) - len(shown)
        rest_ = f" and {more} more" if more else ""
        lines.append(f"never reached: {', '.join(shown)}{rest_}")
    for bar in timeline.bars:
        if bar.open and not bar.begun:
            what = f" for {bar.gate}" if bar.gate else ""
            lines.append(f"still waiting: {bar.name}{what}")
    return lines
