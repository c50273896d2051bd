"""SVG: self-contained, no script, no font of its own, for light and dark screens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from cfac.compiler.draw import text
from cfac.compiler.draw.layout import (
    ARROW,
    LABEL,
    LANE,
    LINE,
    META,
    META_LINE,
    NAME,
    Box,
    Layout,
    Outline,
    Point,
    Strip,
    Wire,
    cost_text,
    layout,
)
from cfac.compiler.draw.scene import Edge, Scene
from cfac.compiler.draw.style import CSS
from cfac.compiler.model import BIRTHS

_MARGIN, _HEAD = 16.0, 46.0
_RADIUS = 5.0


def render(scene: Scene) -> str:
    """The scene as one SVG document."""
    placed = layout(scene)
    title = text.clean(scene.name) or "startup graph"
    title_line = text.ellipsis(title, 15, max(placed.width, 420.0))
    legend, legend_height = _legend(scene, max(placed.width, 420.0))
    wide = max(placed.width, 420.0) + 2 * _MARGIN
    high = _HEAD + placed.height + legend_height + 2 * _MARGIN
    prefix = "cfac-" + re.sub(r"[^A-Za-z0-9_-]", "-", scene.name)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cfac" width="{_n(wide)}" '
        f'height="{_n(high)}" viewBox="0 0 {_n(wide)} {_n(high)}" role="img" '
        f'aria-labelledby="{prefix}-title {prefix}-desc">',
        f'<title id="{prefix}-title">{_esc(title)}</title>',
        f'<desc id="{prefix}-desc">{_esc(describe(scene))}</desc>',
        f"<style>{CSS}</style>",
        f'<rect class="page" width="{_n(wide)}" height="{_n(high)}"/>',
        f'<text class="title" x="{_n(_MARGIN)}" y="{_n(_MARGIN + 14)}">{_esc(title_line)}</text>',
        f'<text class="sub" x="{_n(_MARGIN)}" y="{_n(_MARGIN + 30)}">{_esc(_counts(scene))}</text>',
        f'<g transform="translate({_n(_MARGIN)} {_n(_MARGIN + _HEAD - 6)})">',
    ]
    lines += [_strip(strip) for strip in placed.strips]
    lines += [f'<path class="elbow" d="{_path(points)}"/>' for points in placed.elbows]
    lines += [
        f'<text class="sub" x="{_n(x)}" y="{_n(y)}">{_esc(caption)}</text>'
        for x, y, caption in placed.captions
    ]
    for points in placed.leaving:
        lines.append(f'<path class="own" d="{_path(points)}"/>{_arrow(points, "own")}')
    lines += [_outline(outline) for outline in placed.outlines]
    lines += [_wire(wire) for wire in sorted(placed.wires, key=lambda wire: wire.edge.cyclic)]
    lines += [_box(box) for box in placed.boxes]
    lines += _labels(placed)
    lines.append(f'<g transform="translate(0 {_n(placed.height + 20)})">{legend}</g>')
    lines += ["</g>", "</svg>"]
    return "\n".join(lines) + "\n"


def _counts(scene: Scene) -> str:
    states = sum(1 for node in scene.nodes if node.kind != "initial")
    waits = sum(1 for edge in scene.edges if edge.kind == "after")
    forks = sum(1 for edge in scene.edges if edge.kind == "fork")
    what = "replicas expanded" if scene.expanded else ""
    parts = [
        _plural(len(scene.lanes), "component"),
        _plural(states, "transition"),
        _plural(waits, "dependency", "dependencies"),
        _plural(forks, "fork") if forks else "",
        what,
        "CYCLIC" if scene.cyclic else "",
    ]
    return " · ".join(part for part in parts if part)


def _plural(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _birth(edge: Edge) -> str:
    how = "as a fork of" if edge.kind == "fork" else "in a process started at"
    return f"{edge.target} begins {how} {edge.source}"


def describe(scene: Scene) -> str:
    """A drawing in words, for those who cannot see it."""
    waits: dict[str, list[str]] = {}
    births: list[str] = []
    for edge in scene.edges:
        if edge.kind in BIRTHS:
            births.append(f"{_birth(edge)}.")
        if edge.kind == "after":
            source = f"{edge.source} [{edge.label}]" if edge.label else edge.source
            waits.setdefault(edge.target, []).append(source)
    sentences = [f"Startup graph: {_counts(scene)}."]
    for lane, nodes in scene.by_lane().items():
        sentences.append(f"{lane}: {', then '.join(node.label for node in nodes)}.")
    shown = list(waits.items())[:100]
    sentences += [f"{target} waits for {', '.join(sources)}." for target, sources in shown]
    if len(waits) > len(shown):
        sentences.append(f"{len(waits) - len(shown)} more transitions wait.")
    sentences += births[:100]
    return text.clean(" ".join(sentences))


def _strip(strip: Strip) -> str:
    lane = strip.lane
    tip = text.clean(f"{lane.label} {lane.note}".strip())
    x = 12 + lane.depth * 15
    parts = [
        f'<g class="lane" data-id={_attr(lane.id)}>',
        f"<title>{_esc(tip)} — {_esc(lane.span)}</title>",
        f'<rect x="{_n(strip.x)}" y="{_n(strip.y)}" width="{_n(strip.width)}" '
        f'height="{_n(strip.height)}" rx="6"/>',
        f'<text class="name" x="{_n(x)}" y="{_n(strip.middle + LANE * 0.35)}">'
        f"{_esc(strip.label)}</text>",
    ]
    if strip.note:
        parts.append(
            f'<text class="meta" x="{_n(x)}" y="{_n(strip.middle + 16)}">{_esc(strip.note)}</text>'
        )
    return "".join(parts) + "</g>"


def _box(box: Box) -> str:
    node = box.node
    kind = "ghost" if box.ghost else node.kind
    classes = f"node {kind}" + (" cyclic" if node.cyclic and not box.ghost else "")
    facts = [f"{text.clean(node.id)} ({_KINDS[node.kind]})"]
    if box.ghost:
        facts.append("drawn in another part")
    if node.chain is not None:
        facts.append(f"number {node.chain} in the stock chain")
    if node.cost is not None:
        facts.append(f"takes {cost_text(node.cost)}")
    facts.append(str(node.span))
    radius = box.height / 2 if node.kind == "initial" else 5
    parts = [
        f'<g class="{classes}" data-id={_attr(node.id)}><title>{_esc(chr(10).join(facts))}</title>',
        f'<rect x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" '
        f'height="{_n(box.height)}" rx="{_n(radius)}"/>',
    ]
    x = box.x + box.width / 2
    y = box.middle - (len(box.lines) * LINE + (META_LINE if box.meta else 0)) / 2
    for line in box.lines:
        parts.append(f'<text x="{_n(x)}" y="{_n(y + NAME * 0.93)}">{_esc(line)}</text>')
        y += LINE
    if box.meta:
        parts.append(
            f'<text class="meta" x="{_n(x)}" y="{_n(y + META * 0.93)}">{_esc(box.meta)}</text>'
        )
    return "".join(parts) + "</g>"


_KINDS = {"initial": "initial state", "stock": "stock state", "aux": "auxiliary state"}


def _wire(wire: Wire) -> str:
    edge = wire.edge
    kind = "schedule" if edge.schedule else edge.kind
    classes = kind + (" cyclic" if edge.cyclic else "")
    via = f" [{edge.label}]" if edge.label else ""
    facts = [f"{edge.target} after {edge.source}{via}" if edge.kind == "after" else "own order"]
    if edge.kind == "own":
        facts[0] = f"{edge.source}, then {edge.target}"
    if edge.kind in BIRTHS:
        facts[0] = _birth(edge)
    if edge.schedule:
        facts.append("schedule: for speed only")
    if edge.reason:
        facts.append(edge.reason)
    if edge.span is not None:
        facts.append(str(edge.span))
    tip = "\n".join(text.clean(fact) for fact in facts)
    return (
        f'<g class="edge {classes}" data-source={_attr(edge.source)} '
        f"data-target={_attr(edge.target)}><title>{_esc(tip)}</title>"
        f'<path class="{classes}" d="{_path(wire.points)}"/>{_arrow(wire.points, classes)}</g>'
    )


def _labels(placed: Layout) -> Iterable[str]:
    seen: set[tuple[Point, str]] = set()
    for wire in placed.wires:
        if wire.label_at is None or (wire.label_at, wire.edge.label) in seen:
            continue
        seen.add((wire.label_at, wire.edge.label))
        x, y = wire.label_at
        label = text.clean(wire.edge.label)
        wide = text.width(label, LABEL) + 2
        classes = "label cyclic" if wire.edge.cyclic else "label"
        yield (
            f'<g class="{classes}"><rect x="{_n(x - wide / 2)}" y="{_n(y - 5.5)}" '
            f'width="{_n(wide)}" height="11" rx="3"/>'
            f'<text x="{_n(x)}" y="{_n(y + LABEL * 0.35)}">{_esc(label)}</text></g>'
        )


def _outline(outline: Outline) -> str:
    return (
        f'<g class="group" data-group={_attr(outline.group.name)}>'
        f"<title>{_esc(text.clean(f'merged: {outline.group.name}'))} — {_esc(outline.group.span)}"
        f'</title><rect x="{_n(outline.x)}" y="{_n(outline.y)}" width="{_n(outline.width)}" '
        f'height="{_n(outline.height)}" rx="8"/>'
        f'<text x="{_n(outline.x + 6)}" y="{_n(outline.y + 11)}">{_esc(outline.tag)}</text></g>'
    )


def _path(points: list[Point]) -> str:
    """An orthogonal path with rounded corners."""
    kept = [points[0]]
    for point in points[1:]:
        if point != kept[-1]:
            kept.append(point)
    parts = [f"M{_n(kept[0][0])} {_n(kept[0][1])}"]
    for before, corner, after in zip(kept, kept[1:], kept[2:], strict=False):
        radius = min(_RADIUS, _far(before, corner) / 2, _far(corner, after) / 2)
        (x1, y1), (x2, y2) = _toward(corner, before, radius), _toward(corner, after, radius)
        parts.append(f"L{_n(x1)} {_n(y1)}Q{_n(corner[0])} {_n(corner[1])} {_n(x2)} {_n(y2)}")
    parts.append(f"L{_n(kept[-1][0])} {_n(kept[-1][1])}")
    return "".join(parts)


def _far(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _toward(a: Point, b: Point, distance: float) -> Point:
    full = _far(a, b) or 1.0
    return (a[0] + (b[0] - a[0]) * distance / full, a[1] + (b[1] - a[1]) * distance / full)


def _arrow(points: list[Point], classes: str) -> str:
    x, y = points[-1]
    return f'<path class="head {classes}" d="M{_n(x)} {_n(y)}l{_n(-ARROW + 2)} -3.2v6.4z"/>'


def _legend(scene: Scene, width: float) -> tuple[str, float]:
    """Only what the drawing has; one or a few rows."""
    kinds = {node.kind for node in scene.nodes}
    entries: list[tuple[str, str]] = []
    box = '<rect x="0" y="2" width="22" height="12" rx="{}"/>'
    if kinds > {"stock"}:
        entries += [
            (f'<g class="node {kind}">{box.format(6 if kind == "initial" else 3)}</g>', label)
            for kind, label in _KINDS.items()
            if kind in kinds
        ]
    line = '<path class="{0}" d="M0 8H22"/><path class="head {0}" d="M24 8l-7 -3.2v6.4z"/>'
    if any(edge.kind == "after" for edge in scene.edges):
        entries.append((line.format("own"), "own order"))
        entries.append((line.format("after"), "dependency"))
    if any(edge.schedule for edge in scene.edges):
        entries.append((line.format("schedule"), "for speed only"))
    if scene.cyclic:
        entries.append((line.format("after cyclic"), "cycle"))
    if scene.groups:
        entries.append((f'<g class="group">{box.format(4)}</g>', "merged into one"))
    if any(node.chain is not None for node in scene.nodes):
        entries.append(('<text class="meta" x="8" y="12">#n</text>', "place in the stock chain"))
    if any(lane.note for lane in scene.lanes):
        entries.append(('<text class="meta" x="8" y="12">&#215;n</text>', "replicas, drawn once"))
    parts, x, y = [], 0.0, 0.0
    for mark, label in entries:
        wide = 30 + text.width(label, LABEL + 1) + 18
        if x and x + wide > width:
            x, y = 0.0, y + 20
        parts.append(
            f'<g transform="translate({_n(x)} {_n(y)})">{mark}'
            f'<text class="legend" x="30" y="12">{_esc(label)}</text></g>'
        )
        x += wide
    return "".join(parts), (y + 30 if entries else 0.0)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _esc(value: object) -> str:
    return escape(str(value))


def _attr(value: str) -> str:
    return quoteattr(text.clean(value))
