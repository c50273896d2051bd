"""Mermaid: one subgraph per component, for pages that render it (GitHub, GitLab)."""

from __future__ import annotations

from cfac.compiler.draw.scene import Edge, Node, Scene
from cfac.compiler.draw.text import clean

_STYLES = """\
  classDef initial fill:#e6eaf0,stroke:#8793a3,color:#1b2330
  classDef stock fill:#ffffff,stroke:#46556b,color:#1b2330
  classDef aux fill:#e7f3ee,stroke:#23805c,color:#1b2330,stroke-dasharray:4 3
  classDef merged fill:#f3e8fb,stroke:#8b45b8,color:#1b2330
  classDef cyclic fill:#fdecea,stroke:#c62828,color:#1b2330,stroke-width:2px"""


def render(scene: Scene) -> str:
    """The scene as a Mermaid flowchart; ids are numbers, so that no name can be a keyword."""
    ids = {node.id: f"n{number}" for number, node in enumerate(scene.nodes)}
    merged: dict[str, list[str]] = {}
    for group in scene.groups:
        for member in group.members:
            merged.setdefault(member, []).append(group.name)
    lines = ["flowchart LR"]
    by_lane = scene.by_lane()
    for number, lane in enumerate(scene.lanes):
        title = " ".join(part for part in (lane.label, lane.note) if part)
        if lane.condition:
            title += f" (if {lane.condition})"
        lines.append(f"  subgraph c{number}[{_quote(title)}]")
        lines.append("    direction LR")
        lines += [
            f"    {ids[node.id]}{_node(node, merged.get(node.id, []))}" for node in by_lane[lane.id]
        ]
        lines.append("  end")
    red = []
    for number, edge in enumerate(scene.edges):
        lines.append(f"  {ids[edge.source]} {_arrow(edge)} {ids[edge.target]}")
        if edge.cyclic:
            red.append(str(number))
    lines.append(_STYLES)
    if red:
        lines.append(f"  linkStyle {','.join(red)} stroke:#c62828,stroke-width:3px")
    return "\n".join(lines) + "\n"


def _node(node: Node, groups: list[str]) -> str:
    label = _quote(node.label + "".join(f" · {name}" for name in groups))
    kind = "cyclic" if node.cyclic else "merged" if groups else node.kind
    shape = f"([{label}])" if node.kind == "initial" else f"[{label}]"
    return f"{shape}:::{kind}"


def _arrow(edge: Edge) -> str:
    line = "-.->" if edge.schedule else "==>" if edge.kind == "own" else "-->"
    return f"{line}|{_quote(edge.label)}|" if edge.label else line


def _quote(value: str) -> str:
    """A Mermaid string; its own entity codes keep quotes, tags and markdown from acting."""
    return '"' + "".join(_safe(char) for char in clean(value)) + '"'


def _safe(char: str) -> str:
    return f"#{ord(char)};" if char in '"#&;<>`\\*_[]{}|' else char
