"""Columns and bands: where each node stands in time, before any coordinate.

A node's column is the length of the longest path to it, so every dependency points
right.  Where that is wider than a page, the columns are folded into bands, as text is
into lines; a band repeats, as ghosts, the earlier states that its nodes wait for.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from cfac.compiler.draw.scene import Edge, Node, Scene
from cfac.compiler.scc import strongly_connected

GUTTER = 34.0  #: what a gutter takes on average; used only to decide where to fold


@dataclass(slots=True)
class Cell:
    """A node at its place in a band; a ghost stands for a node of another band."""

    key: str
    node: Node
    row: int
    column: int
    ghost: bool = False


@dataclass(slots=True)
class Band:
    """One stretch of columns, with the lanes that live in it."""

    rows: list[str]
    columns: int
    cells: dict[str, Cell]
    edges: list[tuple[Edge, str, str]] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)  #: cells whose lane goes on in a later band


def columns(scene: Scene) -> dict[str, int]:
    """The column of every node; edges that would close a cycle are left out."""
    ids = {node.id: number for number, node in enumerate(scene.nodes)}
    count = len(ids)
    pairs = [(ids[e.source], ids[e.target], e) for e in scene.edges]
    successors: list[list[int]] = [[] for _ in range(count)]
    for source, target, _ in pairs:
        successors[source].append(target)
    owner = [0] * count
    for number, members in enumerate(strongly_connected(successors)):
        for member in members:
            owner[member] = number
    forward: list[list[int]] = [[] for _ in range(count)]
    inner = []
    for source, target, edge in pairs:
        if owner[source] != owner[target]:
            forward[source].append(target)
        elif source != target:
            inner.append((source, target, edge))
    inner.sort(key=lambda item: (item[2].kind != "own", item[2].carried))
    for source, target, _ in inner:
        if not _reaches(forward, owner, target, source):
            forward[source].append(target)
    level = _longest(count, forward)
    return {node: level[number] for node, number in ids.items()}


def _reaches(forward: list[list[int]], owner: list[int], start: int, goal: int) -> bool:
    seen, work = {start}, [start]
    while work:
        vertex = work.pop()
        if vertex == goal:
            return True
        for other in forward[vertex]:
            if owner[other] == owner[goal] and other not in seen:
                seen.add(other)
                work.append(other)
    return False


def _longest(count: int, forward: list[list[int]]) -> list[int]:
    waiting, level = [0] * count, [0] * count
    for targets in forward:
        for target in targets:
            waiting[target] += 1
    ready = [v for v in range(count) if not waiting[v]]
    for vertex in ready:  # grows while it is walked
        for target in forward[vertex]:
            level[target] = max(level[target], level[vertex] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return level


def fold(scene: Scene, level: dict[str, int], widths: dict[str, float], limit: float) -> list[Band]:
    """The bands of a drawing whose boxes have ``widths``, none much wider than ``limit``."""
    last = max(level.values(), default=0)
    taken = [0.0] * (last + 1)
    for node, column in level.items():
        taken[column] = max(taken[column], widths[node] + GUTTER)
    total = sum(taken)
    if total <= limit:
        return [_band(scene, level, 0, last)]
    level = _late_starts(scene, level)
    share = total / -(-total // limit)  # even bands, not a full one and a rest
    bands, first, used = [], 0, 0.0
    for column in range(last + 1):
        if column > first and used + taken[column] > min(limit, share * 1.08):
            bands.append(_band(scene, level, first, column - 1))
            first, used = column, 0.0
        used += taken[column]
    bands.append(_band(scene, level, first, last))
    return bands


def _late_starts(scene: Scene, level: dict[str, int]) -> dict[str, int]:
    """Move each start next to its first use, so that a band has only the lanes at work."""
    moved = dict(level)
    uses: dict[str, list[int]] = defaultdict(list)
    for edge in scene.edges:
        if level[edge.target] > level[edge.source]:
            uses[edge.source].append(level[edge.target])
    for node in scene.nodes:
        if node.position == 0 and level[node.id] == 0 and uses[node.id]:
            moved[node.id] = min(uses[node.id]) - 1
    return moved


def _band(scene: Scene, level: dict[str, int], first: int, last: int) -> Band:
    inside = {node.id for node in scene.nodes if first <= level[node.id] <= last}
    nodes = {node.id: node for node in scene.nodes}
    order = {lane.id: number for number, lane in enumerate(scene.lanes)}
    edges = [edge for edge in scene.edges if edge.target in inside]
    ghosts = {edge.source for edge in edges} - inside
    used = {nodes[name].lane for name in inside | ghosts}
    rows = sorted(used, key=order.__getitem__)
    row = {lane: number for number, lane in enumerate(rows)}
    by_lane: dict[str, list[Node]] = defaultdict(list)
    for name in ghosts:
        by_lane[nodes[name].lane].append(nodes[name])
    depth = max(map(len, by_lane.values()), default=0)
    cells: dict[str, Cell] = {}
    for lane in rows:
        before = sorted(by_lane[lane], key=lambda node: node.position)
        for number, node in enumerate(before):
            key = f"ghost {node.id}"
            cells[key] = Cell(key, node, row[lane], depth - len(before) + number, ghost=True)
    for node in scene.nodes:
        if node.id in inside:
            place = level[node.id] - first + depth
            cells[node.id] = Cell(node.id, node, row[node.lane], place)
    band = Band(rows, last - first + 1 + depth, cells)
    for edge in edges:
        source = edge.source if edge.source in inside else f"ghost {edge.source}"
        band.edges.append((edge, source, edge.target))
    for edge in scene.edges:
        if edge.kind == "own" and edge.source in inside and edge.target not in inside:
            band.leaving.append(edge.source)
    return band
