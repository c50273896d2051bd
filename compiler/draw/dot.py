"""Graphviz: one cluster per component."""

from __future__ import annotations

from cfac.compiler.draw.scene import Edge, Node, Scene
from cfac.compiler.draw.text import clean

_SHAPE = {
    "initial": 'style="filled,rounded" fillcolor="#e6eaf0" color="#8793a3"',
    "stock": 'style="filled,rounded" fillcolor="white" color="#46556b"',
    "aux": 'style="filled,rounded,dashed" fillcolor="#e7f3ee" color="#23805c"',
}


def render(scene: Scene) -> str:
    """The scene in Graphviz's dot language."""
    lines = [
        f"digraph {_quote(scene.name)} {{",
        "  rankdir=LR; compound=true; newrank=true;",
        f'  label={_quote(scene.name)}; labelloc=t; fontname="sans-serif";',
        '  node [shape=box fontname="sans-serif" fontsize=11 margin="0.12,0.05"];',
        '  edge [fontname="sans-serif" fontsize=9 color="#2563c4" fontcolor="#2563c4"];',
    ]
    by_lane = scene.by_lane()
    merged: dict[str, list[str]] = {}
    for group in scene.groups:
        for member in group.members:
            merged.setdefault(member, []).append(group.name)
    for lane in scene.lanes:
        label = " ".join(part for part in (lane.label, lane.note) if part)
        if lane.condition:
            label += f"\nif {lane.condition}"
        lines.append(f"  subgraph {_quote('cluster ' + lane.id)} {{")
        lines.append(f'    label={_quote(label)}; labeljust=l; style=rounded; color="#c5ccd6";')
        lines += [f"    {_node(node, merged.get(node.id, []))}" for node in by_lane[lane.id]]
        lines.append("  }")
    lines += [f"  {_edge(edge)}" for edge in scene.edges]
    lines.append("}")
    return "\n".join(lines) + "\n"


def _node(node: Node, groups: list[str]) -> str:
    label = "\n".join([node.label, *(f"merged: {name}" for name in groups)])
    look = _SHAPE[node.kind]
    if groups:
        look += " peripheries=2"
    if node.cyclic:
        look = 'style="filled,rounded" fillcolor="#fdecea" color="#c62828" penwidth=2'
    return f"{_quote(node.id)} [label={_quote(label)} tooltip={_quote(str(node.span))} {look}];"


def _edge(edge: Edge) -> str:
    look = []
    if edge.label:
        look.append(f"label={_quote(edge.label)}")
    if edge.kind == "own":
        look.append('color="#97a3b3" weight=10')
    if edge.schedule:
        look.append("style=dashed")
    if edge.carried:
        look.append("constraint=false")
    if edge.cyclic:
        look = [item for item in look if not item.startswith("color")]
        look.append('color="#c62828" fontcolor="#c62828" penwidth=2')
    if edge.reason:
        look.append(f"tooltip={_quote(edge.reason)}")
    attributes = f" [{' '.join(look)}]" if look else ""
    return f"{_quote(edge.source)} -> {_quote(edge.target)}{attributes};"


def _quote(value: str) -> str:
    """A dot string: backslashes would start an escape, a line break becomes one."""
    lines = [clean(line).replace("\\", "\\\\").replace('"', '\\"') for line in value.split("\n")]
    return '"' + "\\n".join(lines) + '"'
