"""Coordinates: boxes, lanes and edge paths of a drawing, in SVG user units."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from cfac.compiler.draw import text
from cfac.compiler.draw.layers import Band, Cell, columns, fold
from cfac.compiler.draw.route import Port, Route, Routes, SegmentKey, plan
from cfac.compiler.draw.scene import Edge, Group, Lane, Node, Scene
from cfac.compiler.draw.tracks import Segment, assign

NAME, META, LABEL, LANE = 12.0, 9.5, 9.5, 12.5  #: font sizes
LINE, META_LINE = 14.0, 12.0  #: line heights
NAME_LIMIT, LANE_LIMIT = 100.0, 170.0  #: text is wrapped or ellipsised beyond
TRACK = 7.0
ARROW = 9.0
PAGE = 2400.0  #: drawings wider than this are folded
INDENT = 15.0
OUTLINE, TAG = 5.0, 13.0

Point = tuple[float, float]


@dataclass(slots=True)
class Box:
    """A state's box; ``x, y`` is its top left corner."""

    node: Node
    ghost: bool
    lines: tuple[str, ...]
    meta: str
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    pad: float = 0.0  #: room above the box for group tags

    @property
    def middle(self) -> float:
        """The y of its own-order line."""
        return self.y + self.height / 2


@dataclass(slots=True)
class Strip:
    """A lane's background and label."""

    lane: Lane
    label: str
    note: str
    x: float
    y: float
    width: float
    height: float
    middle: float


@dataclass(slots=True)
class Wire:
    """An edge's path."""

    edge: Edge
    points: list[Point]
    label_at: Point | None = None


@dataclass(slots=True)
class Outline:
    """A merge group's outline around neighbouring members in one lane."""

    group: Group
    tag: str
    x: float
    y: float
    width: float
    height: float


@dataclass(slots=True)
class Layout:
    """A drawing with coordinates."""

    scene: Scene
    width: float = 0.0
    height: float = 0.0
    bands: int = 0
    boxes: list[Box] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    outlines: list[Outline] = field(default_factory=list)
    elbows: list[list[Point]] = field(default_factory=list)
    leaving: list[list[Point]] = field(default_factory=list)
    captions: list[tuple[float, float, str]] = field(default_factory=list)


def layout(scene: Scene, page: float = PAGE) -> Layout:
    """Place a scene, folded into bands where it is wider than ``page``."""
    groups: dict[str, list[Group]] = defaultdict(list)
    for group in scene.groups:
        for member in group.members:
            groups[member].append(group)
    level = columns(scene)
    widths = {node.id: _box(node, False, groups).width for node in scene.nodes}
    limit = page
    for _ in range(4):  # crowded gutters make a band wider than foreseen
        result = _place(scene, fold(scene, level, widths, limit), groups)
        if result.width <= page + 300 or limit < 400:
            break
        limit *= 0.75
    return result


def _place(scene: Scene, bands: list[Band], groups: dict[str, list[Group]]) -> Layout:
    result = Layout(scene, bands=len(bands))
    labels = _label_column(scene)
    y = 0.0
    for number, band in enumerate(bands):
        if len(bands) > 1:
            result.captions.append((0.0, y + 10, f"part {number + 1} of {len(bands)}"))
            y += 18
        y = _Placer(result, band, groups, labels, y).place() + 22
    result.height = y - 22
    for strip in result.strips:
        strip.width = result.width
    for line in result.leaving:
        line.append((result.width - 5, line[0][1]))
    return result


def _label_column(scene: Scene) -> float:
    widest = 0.0
    for lane in scene.lanes:
        label, note = _lane_text(lane)
        wide = max(text.width(label, LANE), text.width(note, META))
        widest = max(widest, lane.depth * INDENT + wide)
    return widest + 30


def _lane_text(lane: Lane) -> tuple[str, str]:
    condition = f"if {lane.condition}" if lane.condition else ""
    note = " · ".join(part for part in (lane.note, condition) if part)
    return (
        text.ellipsis(text.clean(lane.label), LANE, LANE_LIMIT),
        text.ellipsis(text.clean(note), META, LANE_LIMIT),
    )


def cost_text(seconds: float) -> str:
    """A duration as people write it: ``20ms``, ``1.5s``."""
    return f"{seconds * 1000:.3g}ms" if seconds < 1 else f"{seconds:.3g}s"


def _box(node: Node, ghost: bool, groups: dict[str, list[Group]]) -> Box:
    lines = text.wrap(text.clean(node.label), NAME, NAME_LIMIT)
    parts = []
    if node.chain is not None and not ghost:
        parts.append(f"#{node.chain}")
    if node.cost is not None and not ghost:
        parts.append(cost_text(node.cost))
    meta = " · ".join(parts)
    pad = 20.0 if node.kind != "initial" else 24.0
    wide = max([*(text.width(line, NAME) for line in lines), text.width(meta, META)])
    mine = [] if ghost else groups.get(node.id, [])
    for group in mine:
        wide = max(wide, min(text.width(group.name, META), NAME_LIMIT - 10) - 12)
    high = len(lines) * LINE + (META_LINE if meta else 0) + 10
    room = (OUTLINE + TAG) * len(mine) + (2 if mine else 0)
    return Box(node, ghost, lines, meta, max(44.0, wide + pad), max(28.0, high), pad=room)


class _Placer:
    """Places one band."""

    def __init__(
        self, out: Layout, band: Band, groups: dict[str, list[Group]], labels: float, top: float
    ) -> None:
        self.out, self.band, self.groups, self.labels, self.top = out, band, groups, labels, top
        self.routes: Routes = plan(band)
        self.boxes: dict[str, Box] = {}
        for key, cell in band.cells.items():
            box = self.boxes[key] = _box(cell.node, cell.ghost, groups)
            box.height = max(box.height, 2 * self.routes.half_height(key))
        self.gap_y: list[float] = []
        self.gutter_x: list[float] = []

    def place(self) -> float:
        """Add everything to the layout; the y of the band's lower end."""
        bottom = self._rows()
        right = self._columns()
        out = self.out
        out.width = max(out.width, right)
        for route in self.routes.routes:
            out.wires.append(self._wire(route))
        out.boxes += self.boxes.values()
        for key in self.band.leaving:
            box = self.boxes[key]
            out.leaving.append([(box.x + box.width, box.middle)])
        self._outlines()
        self._elbows()
        return bottom

    def _rows(self) -> float:
        by_row: dict[int, list[Box]] = defaultdict(list)
        for key, cell in self.band.cells.items():
            by_row[cell.row].append(self.boxes[key])
        gaps: dict[int, list[Segment]] = defaultdict(list)
        for (_, gap, _), segment in self.routes.gaps.items():
            gaps[gap].append(segment)
        lanes = {lane.id: lane for lane in self.out.scene.lanes}
        y = self.top
        for row, name in enumerate(self.band.rows):
            tracks = assign(gaps[row], 0.3)
            self.gap_y.append(y + 5)
            y += 5 + (tracks - 1) * TRACK + 5 if tracks else 4
            above = max(box.height / 2 + box.pad for box in by_row[row]) + 5
            grouped = any(box.pad for box in by_row[row])
            below = max(box.height / 2 for box in by_row[row]) + (OUTLINE + 4 if grouped else 5)
            label, note = _lane_text(lanes[name])
            above, below = max(above, 16.0 if note else 10.0), max(below, 18.0 if note else 10.0)
            middle = y + above
            for box in by_row[row]:
                box.y = middle - box.height / 2
            strip = Strip(lanes[name], label, note, 0, y, 0, above + below, middle)
            self.out.strips.append(strip)
            y += above + below
        tracks = assign(gaps[len(self.band.rows)], 0.3)
        self.gap_y.append(y + 5)
        return y + (10 + (tracks - 1) * TRACK if tracks else 0)

    def _vertical_taps(self) -> None:
        for route in self.routes.routes:
            if route.out is None or route.into is None:
                continue
            points = [self._port_y(route.source, route.out, False)]
            sides = [True]  # the out port lies on the low side
            if route.gap is not None:
                gap = self._gap(route.gap)
                points += [gap, gap]
                back = route.source.column >= route.target.column
                sides += [back, not back]
            points.append(self._port_y(route.target, route.into, True))
            sides.append(False)
            for number, key in enumerate(route.vertical):
                segment = self.routes.gutters.setdefault(key, Segment())
                for place in (2 * number, 2 * number + 1):
                    (segment.low if sides[place] else segment.high).append(points[place])

    def _columns(self) -> float:
        self._vertical_taps()
        gutters: dict[int, list[Segment]] = defaultdict(list)
        for (_, gutter, _), segment in self.routes.gutters.items():
            gutters[gutter].append(segment)
        by_column: dict[int, list[Box]] = defaultdict(list)
        label_room: dict[int, float] = defaultdict(float)
        for key, cell in self.band.cells.items():
            by_column[cell.column].append(self.boxes[key])
            for _, _, label in self.routes.ins.get(key, []):
                if label:
                    wide = text.width(label, LABEL) + 10
                    label_room[cell.column] = max(label_room[cell.column], wide)
        x = self.labels
        for column in range(self.band.columns + 1):
            tracks = assign(gutters[column], 5.0)
            self.gutter_x.append(x + 10)
            if tracks:
                x += 10 + (tracks - 1) * TRACK + ARROW + 6 + label_room[column]
            else:
                x += 26.0 if 0 < column < self.band.columns else 8.0
            wide = max((box.width for box in by_column[column]), default=0.0)
            for box in by_column[column]:
                box.x = x + (wide - box.width) / 2
            x += wide
        return x + 8

    def _gap(self, key: SegmentKey) -> float:
        return self.gap_y[key[1]] + self.routes.gaps[key].track * TRACK

    def _port_y(self, cell: Cell, port: Port, inward: bool) -> float:
        return self.boxes[cell.key].middle + self.routes.offset(cell.key, port, inward)

    def _wire(self, route: Route) -> Wire:
        source, target = self.boxes[route.source.key], self.boxes[route.target.key]
        right = source.x + source.width
        if route.out is None or route.into is None:
            return Wire(route.edge, [(right, source.middle), (target.x, target.middle)])
        start, end = (
            self._port_y(route.source, route.out, False),
            self._port_y(route.target, route.into, True),
        )
        points = [(right, start)]
        y = start
        for number, key in enumerate(route.vertical):
            x = self.gutter_x[key[1]] + self.routes.gutters[key].track * TRACK
            points.append((x, y))
            y = self._gap(route.gap) if route.gap is not None and number == 0 else end
            points.append((x, y))
        points.append((target.x, end))
        label_at = None
        if route.edge.label:
            wide = text.width(route.edge.label, LABEL)
            label_at = (target.x - ARROW - 3 - wide / 2, end)
        return Wire(route.edge, points, label_at)

    def _outlines(self) -> None:
        for group in self.out.scene.groups:
            run: list[Box] = []
            cells = [self.band.cells[m] for m in group.members if m in self.band.cells]
            cells.sort(key=lambda cell: (cell.row, cell.node.position))
            before: Cell | None = None
            for cell in cells:
                follows = (
                    before is not None
                    and before.row == cell.row
                    and before.node.position + 1 == cell.node.position
                )
                if run and not follows:
                    self._outline(group, run)
                    run = []
                run.append(self.boxes[cell.key])
                before = cell
            if run:
                self._outline(group, run)

    def _outline(self, group: Group, run: list[Box]) -> None:
        level = max(self.groups[box.node.id].index(group) for box in run)
        edge = OUTLINE + level * 3
        left = min(box.x for box in run) - edge
        right = max(box.x + box.width for box in run) + edge
        top = min(box.y for box in run) - edge - TAG * (level + 1)
        bottom = max(box.y + box.height for box in run) + edge
        tag = text.ellipsis(text.clean(group.name), META, right - left - 10)
        self.out.outlines.append(Outline(group, tag, left, top, right - left, bottom - top))

    def _elbows(self) -> None:
        strips = {s.lane.id: s for s in self.out.strips[-len(self.band.rows) :]}
        first: dict[str, Strip] = {}
        for strip in strips.values():
            first.setdefault(strip.lane.component, strip)
        for strip in strips.values():
            parent = first.get(strip.lane.parent or "")
            if parent is not None and parent.y < strip.y:
                x = 12 + parent.lane.depth * INDENT + 4
                low = parent.middle + (18 if parent.note else 10)
                self.out.elbows.append([(x, low), (x, strip.middle), (x + 8, strip.middle)])
