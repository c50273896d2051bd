"""JSON: the scene's lists as they are, for other tools; keys and order are stable."""

from __future__ import annotations

import json
from typing import Any

from cfac.compiler.diagnostics import Span
from cfac.compiler.draw.scene import Scene

VERSION = 1


def render(scene: Scene) -> str:
    """The scene as JSON text."""
    return json.dumps(document(scene), indent=2, ensure_ascii=False) + "\n"


def document(scene: Scene) -> dict[str, Any]:
    """The scene as JSON-ready data."""
    return {
        "cfac_graph": VERSION,
        "name": scene.name,
        "expanded": scene.expanded,
        "cyclic": scene.cyclic,
        "components": [
            {
                "id": lane.id,
                "component": lane.component,
                "replicas": lane.count or None,
                "when": lane.condition or None,
                "spawned_by": lane.parent,
                "at": _at(lane.span),
            }
            for lane in scene.lanes
        ],
        "nodes": [
            {
                "id": node.id,
                "component": node.lane,
                "state": node.label,
                "kind": node.kind,
                "position": node.position,
                "chain": node.chain,
                "cost": node.cost,
                "cyclic": node.cyclic,
                "at": _at(node.span),
            }
            for node in scene.nodes
        ],
        "edges": [
            {
                "source": edge.source,
                "target": edge.target,
                "kind": edge.kind,
                "index": edge.label or None,
                "schedule": edge.schedule,
                "reason": edge.reason,
                "cyclic": edge.cyclic,
                "at": _at(edge.span),
            }
            for edge in scene.edges
        ],
        "groups": [
            {"name": group.name, "members": list(group.members), "at": _at(group.span)}
            for group in scene.groups
        ],
    }


def _at(span: Span | None) -> str | None:
    return str(span) if span else None
