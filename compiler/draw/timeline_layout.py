"""Where everything of a timeline's picture goes: one time axis, lanes, labels.

A name that does not fit inside its bar stands above the lane, to the right of a thin
leader.  Labels are placed from right to left, each in the lowest row where it meets
neither a label nor a leader, so names of transitions at one instant form a staircase.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cfac.compiler.draw import text
from cfac.compiler.draw.timeline import Bar, Lane, Mark, Timeline, align, duration

WIDTH, EDGE = 1080.0, 16.0
BAR, PAD, ROW = 20.0, 5.0, 13.0
HEAD, NOTE, GAP, AXIS = 30.0, 14.0, 16.0, 26.0
#: font sizes
TITLE, NAME, INSIDE, LABEL = 13.5, 12.0, 11.0, 10.5
#: rows of labels above a lane, replicas drawn of one component, notes below a run
ROWS, REPLICAS, NOTES = 6, 12, 8
_SLOWEST = 4
_GUTTER = 190.0
_LABEL_LIMIT = 190.0
_MIN = 2.0
_BOLD = 1.12


def bold(words: str, size: float) -> float:
    """The width of semibold text."""
    return text.width(words, size * _BOLD)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One bar, or the overlapping bars of a merged group; ``inside`` is empty if too narrow."""

    bars: list[Bar]
    x: float
    width: float
    inside: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A bar's wait."""

    bar: Bar
    x: float
    width: float
    inside: str


@dataclass(slots=True)
class Label:
    """A name above a lane: its leader's x, its text's width, its row (0: the lowest)."""

    x: float
    text: str
    width: float
    bad: bool = False
    row: int = 0


@dataclass(slots=True)
class Strip:
    """One placed lane; ``y`` is its top, ``bar_y`` the top of its bars."""

    lane: Lane
    name: str
    y: float = 0.0
    height: float = 0.0
    bar_y: float = 0.0
    lead: tuple[float, float] | None = None
    lead_text: str = ""
    drawn: list[Drawn] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    crosses: list[tuple[float, Mark]] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    hidden: int = 0


@dataclass(slots=True)
class Block:
    """One run: its title at ``y``, its lanes, and what is written below them."""

    timeline: Timeline
    y: float
    title: str
    total: str
    remark: str
    strips: list[Strip]
    top: float = 0.0
    bottom: float = 0.0
    notes: list[tuple[str, bool]] = field(default_factory=list)
    notes_y: float = 0.0
    end_x: float = 0.0
    lines: list[tuple[float, Mark]] = field(default_factory=list)
    arrows: list[tuple[float, float, float, float, str]] = field(default_factory=list)


@dataclass(slots=True)
class Picture:
    """The whole picture."""

    width: float
    height: float
    left: float
    right: float
    ticks: list[tuple[float, str]]
    axis_y: float
    blocks: list[Block]


def layout(timelines: list[Timeline]) -> Picture:
    """Place several runs one above the other, on one time axis."""
    align(timelines)
    shown = [_shown(timeline) for timeline in timelines]
    names = [lane.name for lanes, _ in shown for lane in lanes]
    gutter = max([52.0, *(bold(name, NAME) for name in names)])
    left = EDGE + 6 + min(gutter, _GUTTER) + 12
    longest = max((timeline.end for timeline in timelines), default=1.0)
    right = WIDTH - EDGE - 8
    limit = WIDTH - EDGE
    for _ in range(6):
        scale = (right - left) / longest
        placed = [[_strip(lane, left, scale, t) for lane in shown[k][0]]
                  for k, t in enumerate(timelines)]  # fmt: skip
        ends = [
            label.x + 3 + label.width for strips in placed for s in strips for label in s.labels
        ]
        over = max(ends, default=0.0) - limit
        if over <= 0:
            break
        right -= over + 1
    y = EDGE
    blocks: list[Block] = []
    for timeline, strips, (_, left_out) in zip(timelines, placed, shown, strict=True):
        block = _block(timeline, timelines[0], strips, left_out, y, left + timeline.total * scale)
        for mark in timeline.marks:
            if mark.kind == "failed" and not mark.after:
                block.lines.append((left + mark.time * scale, mark))
        block.arrows = _arrows(strips, left, scale)
        blocks.append(block)
        block.notes_y = block.bottom + 10
        y = block.bottom + len(block.notes) * NOTE + (6 if block.notes else 0) + GAP
    axis_y = y
    if blocks:  # the axis stands right below the last lanes, before the notes
        last = blocks[-1]
        axis_y = last.bottom + 4
        last.notes_y += AXIS - 6
    y += AXIS
    ticks = [(left + time * scale, label) for time, label in _ticks(longest, right - left)]
    return Picture(WIDTH, y - GAP + 8, left, right, ticks, axis_y, blocks)


def _shown(timeline: Timeline) -> tuple[list[Lane], list[str]]:
    """The lanes to draw: of many replicas the slowest few; and what to say about it."""
    replicas: dict[str, list[Lane]] = {}
    for lane in timeline.lanes:
        replicas.setdefault(lane.base, []).append(lane)
    kept: set[int] = set()
    said = []
    for base, lanes in replicas.items():
        if len(lanes) > REPLICAS:
            total = len(lanes)
            lanes = sorted(lanes, key=_slowness)[-_SLOWEST:]
            said.append(f"{text.clean(base)}: the slowest {_SLOWEST} of {total} replicas are drawn")
        kept |= {id(lane) for lane in lanes}
    return [lane for lane in timeline.lanes if id(lane) in kept], said


def _slowness(lane: Lane) -> tuple[bool, float]:
    return any(bar.open for bar in lane.bars), max((bar.end for bar in lane.bars), default=0.0)


def _strip(lane: Lane, left: float, scale: float, timeline: Timeline) -> Strip:
    strip = Strip(lane, text.ellipsis(lane.name, NAME * _BOLD, _GUTTER))
    if lane.born is not None and lane.alive > lane.born:
        a, b = left + lane.born * scale, left + lane.alive * scale
        strip.lead = (a, b - a)
        for words in ("process start, imports", "imports"):
            if text.width(words, LABEL) + 10 <= b - a:
                strip.lead_text = words
                break
    labels: list[Label] = []
    for group in lane.joined():
        begin, end = min(bar.begin for bar in group), max(bar.end for bar in group)
        x, width = left + begin * scale, (end - begin) * scale
        if width < _MIN:
            x, width = max(left, x + width - _MIN), _MIN
        name = " + ".join(bar.state for bar in group)
        fits = text.width(name, INSIDE) + 7 <= width
        strip.drawn.append(Drawn(group, x, width, name if fits else ""))
        if not fits and any(bar.kind != "initial" for bar in group):
            labels.append(_label(x + width / 2 if width < 12 else x + 4, name, group[-1].open))
    for bar in lane.bars:
        if bar.wait * scale >= _MIN or (bar.open and not bar.begun):
            assert bar.waited is not None
            x = left + bar.waited * scale
            width = max(_MIN, bar.wait * scale)
            phrases = [f"waits for {bar.gate}", str(bar.gate)] if bar.gate else []
            if not bar.begun:
                long = [f"{bar.state} still waits for {bar.gate}"] if bar.gate else []
                phrases = [*long, bar.state]
            fitting = [phrase for phrase in phrases if text.width(phrase, LABEL) + 10 <= width]
            if not bar.begun and not fitting:
                labels.append(_label(x + min(4.0, width / 2), bar.state, True))
            strip.waits.append(Wait(bar, x, width, fitting[0] if fitting else ""))
    for mark in timeline.marks:
        if mark.kind == "failed" and not mark.after and mark.component == lane.name:
            x = left + mark.time * scale
            strip.crosses.append((x, mark))
            labels.append(_label(x, "failed", True))
    strip.labels, strip.hidden = place(labels)
    rows = max((label.row + 1 for label in strip.labels), default=0)
    strip.bar_y = PAD + rows * ROW + (3 if rows else 0)
    strip.height = strip.bar_y + BAR + PAD
    return strip


def _label(x: float, words: str, bad: bool) -> Label:
    short = text.ellipsis(words, LABEL, _LABEL_LIMIT)
    return Label(x, short, text.width(short, LABEL), bad)


def place(labels: list[Label], rows: int = ROWS) -> tuple[list[Label], int]:
    """Give each label a row; those that find none are counted, and one label says so.

    Labels of one instant read from top to bottom in the order given.
    """
    kept: list[Label] = []
    dropped: list[Label] = []
    for _, label in sorted(enumerate(labels), key=lambda item: (-item[1].x, -item[0])):
        row = _row(label, kept, rows)
        if row is None:
            dropped.append(label)
        else:
            label.row = row
            kept.append(label)
    if dropped:
        words = f"+ {len(dropped)} more"
        more = Label(min(d.x for d in dropped), words, text.width(words, LABEL))
        row = _row(more, kept, rows + 1)
        more.row = rows if row is None else row
        kept.append(more)
    return kept, len(dropped)


def _row(label: Label, kept: list[Label], rows: int) -> int | None:
    """The lowest row where the label fits; None if there is none below ``rows``."""
    start, end = label.x, label.x + 3 + label.width + 5
    near = [other for other in kept if other.x < end]
    for row in range(rows):
        free = True
        for other in near:
            meets = other.x + 3 + other.width + 5 > start
            if (other.row == row and meets) or (other.row > row and other.x > start):
                free = False  # a label in the way, or a leader through this one
                break
            if other.row < row and other.x < start and meets:
                free = False  # its leader would cross that label
                break
        if free:
            return row
    return None


def _block(
    timeline: Timeline, first: Timeline, strips: list[Strip], left_out: list[str], y: float,
    end_x: float,
) -> Block:  # fmt: skip
    remark = [_outcome(timeline)]
    if timeline is not first and timeline.complete and first.complete and timeline.total > 0:
        ratio = first.total / timeline.total
        how, ratio = ("faster", ratio) if ratio >= 1 else ("slower", 1 / ratio)
        if ratio >= 1.005:
            remark.append(f"{ratio:.3g}\N{MULTIPLICATION SIGN} {how} than {first.name}")
    if timeline.before is not None:
        remark.append(f"its process had run for {duration(timeline.before)} before")
    total = total_text(timeline)
    room = WIDTH - 2 * EDGE - bold(total, TITLE) - 40
    title = text.ellipsis(timeline.name, TITLE * _BOLD, room * 0.6)
    rest = room - bold(title, TITLE)
    said = text.ellipsis(" \N{MIDDLE DOT} ".join(remark), LABEL, max(rest, 60.0))
    block = Block(timeline, y, title, total, said, strips, end_x=end_x)
    y += HEAD
    block.top = y
    for strip in strips:
        strip.y, strip.bar_y = y, strip.bar_y + y
        y += strip.height + 2
    block.bottom = y
    hidden = sum(strip.hidden for strip in strips)
    if hidden:
        left_out = [*left_out, f"{hidden} names had no room: see the page (html) or the text"]
    block.notes = _notes(timeline, left_out)
    return block


def total_text(timeline: Timeline) -> str:
    """The run's total time."""
    return duration(timeline.total) if timeline.complete else f"not ready, {duration(timeline.end)}"


def _outcome(timeline: Timeline) -> str:
    many = "state" if timeline.states == 1 else "states"
    if timeline.complete:
        return f"to the last of {timeline.states} {many}"
    return f"{timeline.states} of {timeline.states + len(timeline.missing)} {many}"


def facts(timeline: Timeline) -> list[tuple[str, bool]]:
    """What to write below a run: sentences, and whether each is a failure."""
    found: list[tuple[str, bool]] = []
    for mark in timeline.marks:
        if mark.after:
            when = f"{duration(mark.time - timeline.total)} after the last state: "
            if mark.kind == "failed" or mark.component:
                found.append((when + mark.text, False))
        elif mark.kind == "failed":
            found.append((f"{duration(mark.time)}: {mark.text}", True))
        elif mark.kind == "stall":
            found.append((f"{duration(mark.time)}: {mark.text.strip().splitlines()[0]}", False))
    if timeline.missing:
        shown = timeline.missing[:8]
        more = len(timeline.missing) - len(shown)
        rest = f" and {more} more" if more else ""
        found.append((f"never reached: {', '.join(shown)}{rest}", True))
    return found


def _notes(timeline: Timeline, left_out: list[str]) -> list[tuple[str, bool]]:
    lines: list[tuple[str, bool]] = []
    for sentence, bad in [*facts(timeline), *((words, False) for words in left_out)]:
        lines += [(line, bad) for line in fold(sentence, LABEL, WIDTH - 2 * EDGE - 30)]
    if len(lines) > NOTES:
        lines = [*lines[: NOTES - 1], (f"and {len(lines) - NOTES + 1} more lines", False)]
    return lines


def fold(sentence: str, size: float, limit: float) -> list[str]:
    """``sentence`` in lines of at most ``limit`` units, at most three."""
    lines = [""]
    for word in sentence.split():
        longer = f"{lines[-1]} {word}".strip()
        if text.width(longer, size) > limit and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    kept = [text.ellipsis(line, size, limit) for line in lines[:3]]
    if len(lines) > 3:
        kept[-1] = text.ellipsis(kept[-1] + " …", size, limit)
    return kept


def _arrows(
    strips: list[Strip], left: float, scale: float
) -> list[tuple[float, float, float, float, str]]:
    """From the awaited state that came last to the begin it let go, between lanes."""
    found = []
    by_name = {bar.name: (strip, bar) for strip in strips for bar in strip.lane.bars}
    for strip in strips:
        for wait in strip.waits:
            source = by_name.get(wait.bar.gate or "")
            if source is None or not wait.bar.begun or source[0] is strip or source[1].open:
                continue
            x1, x2 = left + source[1].end * scale, wait.x + wait.width
            down = source[0].y < strip.y
            y1 = source[0].bar_y + (BAR if down else 0)
            y2 = strip.bar_y + (0 if down else BAR)
            found.append((x1, y1, x2, y2, f"{wait.bar.name} after {wait.bar.gate}"))
    return found


def _ticks(longest: float, room: float) -> list[tuple[float, str]]:
    """Round times, at least 85 units apart."""
    power, step = -9, 1e-9
    while step / longest * room < 85:
        power, step = next(
            (p, m * 10.0**p)
            for p, m in ((power, 2), (power, 5), (power + 1, 1))
            if m * 10.0**p > step * 1.01
        )
    unit, factor = ("s", 1.0) if longest >= 2 else ("ms", 1e3) if longest >= 2e-3 else ("µs", 1e6)
    count = int(longest / step + 1e-9)
    return [(k * step, f"{k * step * factor:.10g} {unit}" if k else "0") for k in range(count + 1)]
