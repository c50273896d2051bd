"""A timeline as SVG: self-contained, no script, for light and dark screens."""

from __future__ import annotations

from cfac.compiler.draw import text
from cfac.compiler.draw.svg import _attr, _esc, _n
from cfac.compiler.draw.timeline import Bar, Timeline, duration
from cfac.compiler.draw.timeline_layout import (
    BAR,
    EDGE,
    LABEL,
    NOTE,
    ROW,
    TITLE,
    Block,
    Drawn,
    Label,
    Picture,
    Strip,
    Wait,
    bold,
    facts,
    layout,
    total_text,
)

_LIGHT = """
.cfac-t text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,
sans-serif;font-size:10.5px;fill:#1b2330}
.cfac-t .page{fill:#fff}
.cfac-t .title{font-size:13.5px;font-weight:600}
.cfac-t .sub,.cfac-t .legend,.cfac-t .tick{fill:#5b6675}
.cfac-t .strip{fill:#f4f6f9}
.cfac-t .name{font-size:12px;font-weight:600}
.cfac-t .grid{stroke:#1b2330;stroke-opacity:.09}
.cfac-t .total{stroke:#1b2330;stroke-width:1.2}
.cfac-t .lead rect{fill:#dbe1e9}
.cfac-t .lead text,.cfac-t .wait text{fill:#5b6675}
.cfac-t .bar rect{fill:#b9d0f4;stroke:#2563c4;stroke-width:1}
.cfac-t .bar.aux rect{fill:#bfe3d3;stroke:#23805c}
.cfac-t .bar.initial rect{fill:#46556b;stroke:none}
.cfac-t .bar.short rect{fill:#2563c4;stroke:none}
.cfac-t .bar.aux.short rect{fill:#23805c}
.cfac-t .bar.open rect{fill:#f9cfcb;stroke:#c62828;stroke-dasharray:4 2.5}
.cfac-t .bar text{font-size:11px}
.cfac-t .wait rect{fill:none;stroke:#97a3b3;stroke-dasharray:4 3}
.cfac-t .wait.open rect{stroke:#c62828}
.cfac-t .leader{stroke:#97a3b3;stroke-width:1}
.cfac-t .leader.bad,.cfac-t .fail{stroke:#c62828}
.cfac-t .fail{stroke-width:1.4;fill:none}
.cfac-t text.bad{fill:#c62828}
.cfac-t .label{paint-order:stroke;stroke:#f4f6f9;stroke-width:3px;stroke-linejoin:round}
.cfac-t .arrow{fill:none;stroke:#5b6675;stroke-opacity:.55;stroke-width:1}
.cfac-t .head{fill:#5b6675;fill-opacity:.8}
"""

_DARK = """
.cfac-t text{fill:#e3e8ef}
.cfac-t .page{fill:#12161c}
.cfac-t .sub,.cfac-t .legend,.cfac-t .tick,.cfac-t .lead text,.cfac-t .wait text{fill:#9ba7b6}
.cfac-t .strip{fill:#1a2029}
.cfac-t .grid{stroke:#e3e8ef;stroke-opacity:.1}
.cfac-t .total{stroke:#e3e8ef}
.cfac-t .lead rect{fill:#2d3743}
.cfac-t .bar rect{fill:#27477c;stroke:#6ea8ff}
.cfac-t .bar.aux rect{fill:#1d4a3a;stroke:#4fc797}
.cfac-t .bar.initial rect{fill:#a3b1c2}
.cfac-t .bar.short rect{fill:#6ea8ff}
.cfac-t .bar.aux.short rect{fill:#4fc797}
.cfac-t .bar.open rect{fill:#5c2426;stroke:#ff6b64}
.cfac-t .wait rect{stroke:#6d7b8c}
.cfac-t .wait.open rect,.cfac-t .leader.bad,.cfac-t .fail{stroke:#ff6b64}
.cfac-t .leader{stroke:#6d7b8c}
.cfac-t text.bad{fill:#ff6b64}
.cfac-t .label{stroke:#1a2029}
.cfac-t .arrow{stroke:#9ba7b6}
.cfac-t .head{fill:#9ba7b6}
"""

CSS = _LIGHT + "@media (prefers-color-scheme:dark){" + _DARK + "}\n"


def render(timelines: list[Timeline]) -> str:
    """Several runs one above the other, as one SVG document."""
    picture = layout(timelines)
    legend, legend_height = _legend(picture)
    high = picture.height + legend_height + 4
    title = " / ".join(timeline.name for timeline in timelines) or "no run"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cfac-t" width="{_n(picture.width)}" '
        f'height="{_n(high)}" viewBox="0 0 {_n(picture.width)} {_n(high)}" role="img">',
        f"<title>{_esc(f'Startup timeline: {title}')}</title>",
        f"<desc>{_esc(describe(timelines))}</desc>",
        f"<style>{CSS}</style>",
        f'<rect class="page" width="{_n(picture.width)}" height="{_n(high)}"/>',
    ]
    for block in picture.blocks:
        lines += _block(block, picture)
    lines += _axis(picture)
    lines.append(f'<g transform="translate({_n(EDGE)} {_n(picture.height)})">{legend}</g></svg>')
    return "\n".join(lines) + "\n"


def describe(timelines: list[Timeline]) -> str:
    """The picture in words, for those who cannot see it."""
    sentences = []
    for timeline in timelines:
        sentences.append(f"{timeline.name}: {total_text(timeline)}.")
        for lane in timeline.lanes[:20]:
            steps = [f"{bar.state} {'open' if bar.open else duration(bar.end)}"
                     for bar in lane.bars[:20]]  # fmt: skip
            sentences.append(f"{lane.name}: {', '.join(steps)}.")
        sentences += [f"{fact}." for fact, _ in facts(timeline)]
    return text.clean(" ".join(sentences))


def _block(block: Block, picture: Picture) -> list[str]:
    y = block.y + 15
    x = EDGE + bold(block.title, TITLE) + 14
    bad = "" if block.timeline.complete else " bad"
    lines = [
        f'<g class="run" data-run={_attr(block.timeline.id)}>',
        f'<text class="title" x="{_n(EDGE)}" y="{_n(y)}">{_esc(block.title)}</text>',
        f'<text class="title{bad}" x="{_n(x)}" y="{_n(y)}">{_esc(block.total)}</text>',
        f'<text class="sub" x="{_n(x + bold(block.total, TITLE) + 10)}" y="{_n(y)}">'
        f"{_esc(block.remark)}</text>",
    ]
    lines += [
        f'<rect class="strip" x="{_n(EDGE)}" y="{_n(strip.y)}" '
        f'width="{_n(picture.width - 2 * EDGE)}" height="{_n(strip.height)}" rx="6"/>'
        for strip in block.strips
    ]
    lines += [_line("grid", x, block.top, x, block.bottom - 2) for x, _ in picture.ticks]
    lines += [_arrow(*arrow) for arrow in block.arrows]
    lines += [
        f'<g class="failure"><title>{_esc(mark.text)}</title>'
        f"{_line('fail', at, block.top, at, block.bottom - 2)}</g>"
        for at, mark in block.lines
    ]
    if block.timeline.complete:
        lines.append(_line("total", block.end_x, block.top - 4, block.end_x, block.bottom - 2))
    for strip in block.strips:
        lines += _strip(strip)
    y = block.notes_y
    for note, is_bad in block.notes:
        kind = "note bad" if is_bad else "note sub"
        lines.append(f'<text class="{kind}" x="{_n(EDGE + 6)}" y="{_n(y)}">{_esc(note)}</text>')
        y += NOTE
    lines.append("</g>")
    return lines


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="{kind}" d="M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}"/>'


def _arrow(x1: float, y1: float, x2: float, y2: float, tip: str) -> str:
    down = y2 > y1
    y3 = y2 - 4 if down else y2 + 4
    middle = (y1 + y3) / 2
    head = f"M{_n(x2)} {_n(y2)}l-2.6 {-5 if down else 5}h5.2z"
    return (
        f'<g class="dependency"><title>{_esc(tip)}</title><path class="arrow" d="M{_n(x1)} {_n(y1)}'
        f'C{_n(x1)} {_n(middle)} {_n(x2)} {_n(middle)} {_n(x2)} {_n(y3)}"/>'
        f'<path class="head" d="{head}"/></g>'
    )


def _strip(strip: Strip) -> list[str]:
    middle = strip.bar_y + BAR / 2
    lines = [
        f'<g class="lane" data-id={_attr(strip.lane.name)}><text class="name" '
        f'x="{_n(EDGE + 6)}" y="{_n(middle + 4.2)}"><title>{_esc(strip.lane.name)}</title>'
        f"{_esc(strip.name)}</text>"
    ]
    if strip.lead is not None:
        x, width = strip.lead
        took = duration(strip.lane.alive - (strip.lane.born or 0.0))
        words = f'<text x="{_n(x + 5)}" y="{_n(middle + 3.8)}">{_esc(strip.lead_text)}</text>'
        lines.append(
            f'<g class="lead"><title>{_esc(f"process start and imports: {took}")}</title>'
            f'<rect x="{_n(x)}" y="{_n(strip.bar_y + 1)}" width="{_n(width)}" '
            f'height="{_n(BAR - 2)}" rx="2"/>{words if strip.lead_text else ""}</g>'
        )
    lines += [_wait(wait, strip.bar_y) for wait in strip.waits]
    lines += [_leader(label, strip.bar_y) for label in strip.labels]
    lines += [_bar(drawn, strip.bar_y) for drawn in strip.drawn]
    for x, mark in strip.crosses:
        lines.append(
            f'<g class="cross"><title>{_esc(mark.text)}</title><path class="fail" stroke-width="2" '
            f'd="M{_n(x - 4)} {_n(middle - 4)}l8 8m0 -8l-8 8"/></g>'
        )
    lines += [_label(label, strip.bar_y) for label in strip.labels]
    lines.append("</g>")
    return lines


def _wait(wait: Wait, y: float) -> str:
    classes = "wait" if wait.bar.begun else "wait open"
    words = (
        f'<text x="{_n(wait.x + 5)}" y="{_n(y + BAR / 2 + 3.8)}">{_esc(wait.inside)}</text>'
        if wait.inside
        else ""
    )
    return (
        f'<g class="{classes}" data-id={_attr(wait.bar.name)}>'
        f"<title>{_esc(tip(wait.bar))}</title>"
        f'<rect x="{_n(wait.x + 0.5)}" y="{_n(y + 2.5)}" width="{_n(max(wait.width - 1, 1))}" '
        f'height="{_n(BAR - 5)}" rx="2"/>{words}</g>'
    )


def _bar(drawn: Drawn, y: float) -> str:
    last = drawn.bars[-1]
    classes = ["bar", last.kind, "open" if last.open else ""]
    short = drawn.width < 5
    if short and not last.open and last.kind != "initial":
        classes.append("short")
    words = (
        f'<text x="{_n(drawn.x + 4.5)}" y="{_n(y + BAR / 2 + 4)}">{_esc(drawn.inside)}</text>'
        if drawn.inside
        else ""
    )
    inset = 0.0 if short else 0.5
    names = " + ".join(bar.name for bar in drawn.bars)
    tips = "\n".join(tip(bar) for bar in drawn.bars)
    return (
        f'<g class="{" ".join(filter(None, classes))}" data-id={_attr(names)}>'
        f"<title>{_esc(tips)}</title>"
        f'<rect x="{_n(drawn.x + inset)}" y="{_n(y + inset)}" '
        f'width="{_n(drawn.width - 2 * inset)}" height="{_n(BAR - 2 * inset)}" '
        f'rx="{0 if short else 2.5}"/>{words}</g>'
    )


def _leader(label: Label, bar_y: float) -> str:
    top = bar_y - 3 - (label.row + 1) * ROW + 3
    return _line("leader bad" if label.bad else "leader", label.x, top, label.x, bar_y)


def _label(label: Label, bar_y: float) -> str:
    kind = "label bad" if label.bad else "label"
    y = bar_y - 3 - label.row * ROW - 2.5
    return f'<text class="{kind}" x="{_n(label.x + 3)}" y="{_n(y)}">{_esc(label.text)}</text>'


def tip(bar: Bar) -> str:
    """All that is known of a transition, a line each."""
    lines = [bar.name]
    if bar.kind == "initial":
        lines.append(f"initial state, at {duration(bar.end)}")
    elif not bar.begun:
        lines.append("never begun")
    elif bar.open:
        lines.append(f"begun at {duration(bar.begin)}, never ended")
    else:
        took = duration(bar.end - bar.begin)
        lines.append(f"{took}, from {duration(bar.begin)} to {duration(bar.end)}")
    if not bar.known:
        lines.append("its begin was not recorded")
    if bar.needs:
        more = f" and {len(bar.needs) - 6} more" if len(bar.needs) > 6 else ""
        lines.append(f"after {', '.join(bar.needs[:6])}{more}")
    if bar.waited is not None and bar.wait > 0:
        last = f", last for {bar.gate}" if bar.gate else ""
        lines.append(f"waited {duration(bar.wait)}{last}")
    return "\n".join(lines)


def _axis(picture: Picture) -> list[str]:
    y = picture.axis_y + 10
    lines = []
    for x, label in picture.ticks:
        wide = text.width(label, LABEL)
        at = min(max(x - wide / 2, 0.0), picture.width - wide)
        lines.append(f'<text class="tick" x="{_n(at)}" y="{_n(y)}">{_esc(label)}</text>')
    return lines


def _legend(picture: Picture) -> tuple[str, float]:
    """Only what the picture has."""
    strips = [strip for block in picture.blocks for strip in block.strips]
    bars = [bar for strip in strips for drawn in strip.drawn for bar in drawn.bars]
    box = '<rect x="0.5" y="2.5" width="21" height="11" rx="2"/>'
    entries: list[tuple[str, str]] = []
    if any(strip.lead for strip in strips):
        entries.append((f'<g class="lead">{box}</g>', "process start, imports"))
    if any(bar.kind == "stock" and not bar.open for bar in bars):
        entries.append((f'<g class="bar stock">{box}</g>', "transition, begin to publish"))
    if any(bar.kind == "aux" and not bar.open for bar in bars):
        entries.append((f'<g class="bar aux">{box}</g>', "auxiliary transition"))
    if any(strip.waits for strip in strips):
        entries.append((f'<g class="wait">{box}</g>', "waits"))
    if any(bar.kind == "initial" for bar in bars):
        mark = '<g class="bar initial"><rect x="10" y="2" width="2" height="12"/></g>'
        entries.append((mark, "initial state"))
    if any(block.arrows for block in picture.blocks):
        mark = '<path class="arrow" d="M2 8H17"/><path class="head" d="M22 8l-5 -2.6v5.2z"/>'
        entries.append((mark, "the state it waited for"))
    if any(bar.open for bar in bars):
        entries.append((f'<g class="bar open">{box}</g>', "never ended"))
    if any(block.lines for block in picture.blocks):
        entries.append(('<path class="fail" d="M7 4l8 8m0 -8l-8 8"/>', "failed"))
    parts, x, y = [], 0.0, 0.0
    for mark, label in entries:
        wide = 29 + text.width(label, LABEL) + 14
        if x and x + wide > picture.width - 2 * EDGE:
            x, y = 0.0, y + 18
        parts.append(
            f'<g transform="translate({_n(x)} {_n(y)})">{mark}'
            f'<text class="legend" x="29" y="12">{_esc(label)}</text></g>'
        )
        x += wide
    return "".join(parts), y + 24 if entries else 0.0
