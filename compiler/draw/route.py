"""Routes: which gutters and gaps each edge runs through, before any coordinate.

A route is orthogonal: out of a box, along a gutter, perhaps along a gap between lanes and
another gutter, into a box; gutters and gaps hold no boxes, so no line crosses one.  Edges of
one source or of one target share a trunk (a *net*); different nets never share a track.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from cfac.compiler.draw.layers import Band, Cell
from cfac.compiler.draw.scene import Edge
from cfac.compiler.draw.tracks import Segment

Style = tuple[str, bool, bool]
#: (side above or not, net style, label): lines of one port come from one net or join at the end.
Port = tuple[bool, Style, str]
SegmentKey = tuple[Hashable, int, Hashable]

IN_FIRST, OUT_FIRST, PORT_STEP = 12.0, 6.0, 12.0  # in and out differ: they never overlap


@dataclass(slots=True)
class Route:
    """One edge's way.  ``vertical`` and ``gap`` name segments; a straight edge has none."""

    edge: Edge
    source: Cell
    target: Cell
    out: Port | None = None
    into: Port | None = None
    vertical: tuple[SegmentKey, ...] = ()
    gap: SegmentKey | None = None


@dataclass(slots=True)
class Routes:
    """All routes of a band, and the segments that they share."""

    routes: list[Route] = field(default_factory=list)
    gutters: dict[SegmentKey, Segment] = field(default_factory=dict)
    gaps: dict[SegmentKey, Segment] = field(default_factory=dict)
    outs: dict[str, list[Port]] = field(default_factory=dict)
    ins: dict[str, list[Port]] = field(default_factory=dict)

    def half_height(self, key: str) -> float:
        """What the ports of a box need, above and below its middle."""
        need = 0.0
        for first, side in ((IN_FIRST, self.ins), (OUT_FIRST, self.outs)):
            ports = side.get(key, [])
            for above in (True, False):
                count = sum(1 for port in ports if port[0] is above)
                if count:
                    need = max(need, first + PORT_STEP * (count - 1) + 6)
        return need

    def offset(self, key: str, port: Port, inward: bool) -> float:
        """How far below its box's middle a port is."""
        ports = self.ins[key] if inward else self.outs[key]
        place = [p for p in ports if p[0] is port[0]].index(port)
        distance = (IN_FIRST if inward else OUT_FIRST) + PORT_STEP * place
        return -distance if port[0] else distance


def style(edge: Edge) -> Style:
    """What decides an edge's look."""
    return (edge.kind, edge.schedule, edge.cyclic)


def plan(band: Band) -> Routes:
    """Choose the routes of all edges of ``band``."""
    result = Routes()
    fan_out: Counter[Hashable] = Counter()
    fan_in: Counter[Hashable] = Counter()
    for edge, source, target in band.edges:
        route = Route(edge, band.cells[source], band.cells[target])
        result.routes.append(route)
        if _straight(route):
            continue
        down = route.target.row > route.source.row
        route.out = (not down, style(edge), "")
        route.into = (down or route.target.row == route.source.row, style(edge), edge.label)
        _add(result.outs, source, route.out)
        _add(result.ins, target, route.into)
        fan_out[source, route.out] += 1
        fan_in[target, route.into] += 1
    for number, route in enumerate(result.routes):
        if route.out is not None and route.into is not None:
            shared_in = fan_in[route.target.key, route.into]
            shared_out = fan_out[route.source.key, route.out]
            _choose(result, route, number, shared_in > shared_out)
    return result


def _straight(route: Route) -> bool:
    edge, source, target = route.edge, route.source, route.target
    return edge.kind == "own" and source.row == target.row and source.column < target.column


def _add(ports: dict[str, list[Port]], key: str, port: Port) -> None:
    known = ports.setdefault(key, [])
    if port not in known:
        known.append(port)


def _choose(result: Routes, route: Route, number: int, join: bool) -> None:
    source, target = route.source, route.target
    forward = source.column < target.column
    same = source.row == target.row
    owner: Hashable
    if same or not forward:
        owner, join = ("edge", number), False
    elif join:
        owner = ("to", target.key, route.into)
    else:
        owner = ("from", source.key, route.out)
    leave, enter = source.column + 1, target.column
    if forward and leave == enter:
        route.vertical = ((owner, leave, "trunk"),)
        return
    down = target.row > source.row
    if same:
        gap = source.row
    elif join:
        gap = source.row + 1 if down else source.row
    else:
        gap = target.row if down else target.row + 1
    first = (owner, leave, ("stub", source.key) if join else "trunk")
    last = (owner, enter, "trunk" if join else ("stub", target.key))
    route.vertical = (first, last)
    route.gap = (owner, gap, "")
    segment = result.gaps.setdefault(route.gap, Segment())
    for column, row, nudge in ((leave, source.row, 0.2), (enter, target.row, -0.2)):
        (segment.low if row < gap else segment.high).append(column + nudge)
