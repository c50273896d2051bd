"""The SVG read back: nothing overlaps, nothing is clipped, every edge meets its nodes."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import draw_specs as specs
import pytest

from cfac.compiler.draw import svg, text
from cfac.compiler.draw.build import collapsed, expanded
from cfac.compiler.draw.layers import columns
from cfac.compiler.draw.layout import PAGE, layout

NS = "{http://www.w3.org/2000/svg}"
SCENES = {
    "three": collapsed(specs.three()),
    "thirty": collapsed(specs.thirty()),
    "expanded thirty": expanded(specs.thirty(), {"workers": 3, "chunks": 6, "n": 4}),
    "sparse": collapsed(specs.many(1)),
    "dense": collapsed(specs.many(2, density=0.6)),
    "cyclic": collapsed(specs.many(3, density=0.3, cyclic=True)),
    "tangle": collapsed(specs.many(4, lanes=6, states=5, density=0.6, cyclic=True)),
    "workers": expanded(specs.workers(), {"workers": 100}),
    "staircase": expanded(specs.workers(chained=True), {"workers": 100}),
    "serial": collapsed(specs.serial()),
    "hostile": collapsed(specs.hostile()),
    "empty": collapsed(specs.spec("empty")),
    **{f"random {k}": collapsed(specs.many(k, 8, 6, 0.5, k % 2 == 0)) for k in range(10, 18)},
}


@dataclass
class Drawing:
    width: float
    height: float
    boxes: list = field(default_factory=list)  # (id, classes, x, y, w, h, element)
    edges: list = field(default_factory=list)  # (source, target, points)
    labels: list = field(default_factory=list)
    root: ET.Element = None


def number(element, name):
    return float(element.get(name, "0"))


def rect(group):
    found = group.find(f"{NS}rect")
    return tuple(number(found, name) for name in ("x", "y", "width", "height"))


def corners(path):
    """The corners of an orthogonal path: starts, Q control points and the end."""
    steps = re.findall(r"([MLQ])([-\d. ]+)", path)
    values = [(kind, [float(v) for v in numbers.split()]) for kind, numbers in steps]
    points = [tuple(values[0][1])]
    points += [tuple(v[:2]) for kind, v in values if kind == "Q"]
    return [*points, tuple(values[-1][1][-2:])]


def read(scene):
    root = ET.fromstring(svg.render(scene))
    drawing = Drawing(number(root, "width"), number(root, "height"), root=root)
    for group in root.iter(f"{NS}g"):
        kinds = (group.get("class") or "").split()
        if "node" in kinds and group.get("data-id") is not None:
            drawing.boxes.append((group.get("data-id"), kinds, *rect(group), group))
        elif "edge" in kinds:
            path = group.find(f"{NS}path").get("d")
            drawing.edges.append(
                (group.get("data-source"), group.get("data-target"), corners(path))
            )
        elif "label" in kinds:
            drawing.labels.append(rect(group))
    return drawing


@pytest.fixture(params=SCENES, scope="module")
def case(request):
    scene = SCENES[request.param]
    return scene, read(scene)


def overlap(a, b, slack=0.0):
    return (
        a[0] < b[0] + b[2] - slack
        and b[0] < a[0] + a[2] - slack
        and a[1] < b[1] + b[3] - slack
        and b[1] < a[1] + a[3] - slack
    )


def neighbours(rects, cell=150):
    """Pairs of rectangles that share a cell of a grid."""
    grid = defaultdict(list)
    for place, (x, y, w, h) in enumerate(rects):
        for column in range(int(x // cell), int((x + w) // cell) + 1):
            for row in range(int(y // cell), int((y + h) // cell) + 1):
                grid[column, row].append(place)
    return {pair for places in grid.values() for pair in itertools.combinations(places, 2)}


def test_every_state_is_drawn_once(case):
    scene, drawing = case
    drawn = Counter(name for name, kinds, *_ in drawing.boxes if "ghost" not in kinds)
    assert drawn == Counter(text.clean(node.id) for node in scene.nodes)


def test_every_edge_is_drawn_once(case):
    scene, drawing = case
    drawn = Counter((source, target) for source, target, _ in drawing.edges)
    wanted = ((text.clean(e.source), text.clean(e.target)) for e in scene.edges)
    assert drawn == Counter(wanted)


def test_boxes_and_labels_do_not_overlap(case):
    _, drawing = case
    rects = [box[2:6] for box in drawing.boxes] + drawing.labels
    for a, b in neighbours(rects):
        assert not overlap(rects[a], rects[b]), (rects[a], rects[b])


def test_text_is_inside_its_box(case):
    _, drawing = case
    for name, _, x, y, w, h, group in drawing.boxes:
        for line in group.iter(f"{NS}text"):
            size = 9.5 if line.get("class") == "meta" else 12
            half = text.width(line.text or "", size) / 2
            middle, base = number(line, "x"), number(line, "y")
            assert x <= middle - half and middle + half <= x + w, name
            assert y <= base - 0.75 * size and base + 0.2 * size <= y + h, name


def test_all_is_inside_the_page(case):
    scene, drawing = case
    placed = layout(scene)
    assert drawing.width >= placed.width
    for _, _, x, y, w, h, _ in drawing.boxes:
        assert x >= 0 and x + w <= placed.width and y >= 0 and y + h <= placed.height
    for _, _, points in drawing.edges:
        for x, y in points:
            assert 0 <= x <= placed.width and 0 <= y <= placed.height
    for group in drawing.root.iter(f"{NS}g"):
        if group.get("class") == "lane":
            for line in group.iter(f"{NS}text"):
                size = 9.5 if line.get("class") == "meta" else 13.5  # bold
                end = number(line, "x") + text.width(line.text or "", size)
                assert end <= min((box[2] for box in drawing.boxes), default=end)


def test_every_edge_starts_and_ends_at_its_nodes(case):
    _, drawing = case
    boxes = defaultdict(list)
    for name, _, x, y, w, h, _ in drawing.boxes:
        boxes[name].append((x, y, w, h))
    for source, target, points in drawing.edges:
        (x1, y1), (x2, y2) = points[0], points[-1]
        assert any(abs(x + w - x1) < 0.2 and y < y1 < y + h for x, y, w, h in boxes[source])
        assert any(abs(x - x2) < 0.2 and y < y2 < y + h for x, y, w, h in boxes[target])


def segments(drawing):
    for source, target, points in drawing.edges:
        for (x1, y1), (x2, y2) in itertools.pairwise(points):
            yield source, target, min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def test_edges_are_orthogonal_and_run_through_no_box(case):
    _, drawing = case
    rects = [box[2:6] for box in drawing.boxes]
    lines = [(s[2], s[3], s[4] - s[2], s[5] - s[3]) for s in segments(drawing)]
    assert all(w < 0.2 or h < 0.2 for _, _, w, h in lines)
    both = rects + lines
    for a, b in neighbours(both):
        if a < len(rects) <= b:
            x, y, w, h = both[b]
            assert not overlap(both[a], (x, y, max(w, 0.2), max(h, 0.2)), 0.3), (both[a], both[b])


def test_edges_that_share_no_end_share_no_line(case):
    _, drawing = case
    by_line = defaultdict(list)
    for source, target, x1, y1, x2, y2 in segments(drawing):
        if y2 - y1 > 0.5:
            by_line["x", round(x1)].append((y1, y2, source, target))
        elif x2 - x1 > 0.5:
            by_line["y", round(y1)].append((x1, x2, source, target))
    for line, found in by_line.items():
        found.sort()
        for place, (_, end, source, target) in enumerate(found):
            for start, _, other, other_target in itertools.islice(found, place + 1, None):
                if start >= end - 1:
                    break
                assert source == other or target == other_target, (line, source, target, other)


def test_width_is_bounded(case):
    _, drawing = case
    assert drawing.width <= PAGE + 400


def test_dependencies_point_right():
    for name, scene in SCENES.items():
        level = columns(scene)
        for edge in scene.edges:
            if edge.kind == "own" or not (edge.carried or scene.cyclic):
                assert level[edge.source] < level[edge.target], (name, edge)


def test_serial_specs_are_folded():
    placed = layout(SCENES["serial"])
    assert placed.bands > 3
    assert sum(box.ghost for box in placed.boxes) == placed.bands - 1


def test_title_description_and_tooltips():
    root = ET.fromstring(svg.render(SCENES["thirty"]))
    assert root.get("role") == "img"
    title, desc = root.find(f"{NS}title"), root.find(f"{NS}desc")
    assert root.get("aria-labelledby").split() == [title.get("id"), desc.get("id")]
    assert "core.Ready waits for worker.Ready [*]" in desc.text
    tips = [t.text for t in root.iter(f"{NS}title")]
    assert any("core.Ready" in tip and "spec.yaml:3:5" in tip for tip in tips)
    assert any("schedule: for speed only\nbecause" in tip for tip in tips)


def test_it_is_self_contained_and_has_a_dark_mode():
    drawn = svg.render(SCENES["hostile"])
    assert "prefers-color-scheme:dark" in drawn
    root = ET.fromstring(drawn)
    assert not list(root.iter(f"{NS}script"))
    assert not re.search(
        r"(href|@import|url\()", re.sub(r"<title.*?</title>", "", drawn, flags=re.S)
    )


def test_the_legend_has_only_what_occurs():
    def legend(scene):
        root = ET.fromstring(svg.render(scene))
        return {t.text for t in root.iter(f"{NS}text") if t.get("class") == "legend"}

    assert "cycle" not in legend(SCENES["three"])
    assert "auxiliary state" not in legend(SCENES["three"])
    assert {"for speed only", "merged into one", "auxiliary state"} <= legend(SCENES["thirty"])
    assert "cycle" in legend(SCENES["tangle"])


@pytest.mark.parametrize(
    "name", ["Ready", "A" * 200, "PrometheusEndpointListeningAgain", "汉字" * 40]
)
def test_wrap_stays_within_its_limit(name):
    lines = text.wrap(name, 12, 100)
    assert 1 <= len(lines) <= 3
    assert all(text.width(line, 12) <= 100 for line in lines)
