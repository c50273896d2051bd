"""Drawing a spec: a neutral scene (`build`), then dot, mermaid, json or svg."""

from __future__ import annotations

from importlib import import_module

from cfac.compiler.draw.scene import Scene

FORMATS = ("svg", "dot", "mermaid", "json")


def render(scene: Scene, format: str) -> str:
    """``scene`` in one of `FORMATS`."""
    if format not in FORMATS:
        raise ValueError(f"unknown drawing format {format!r}")
    text: str = import_module(f"{__name__}.{format}").render(scene)
    return text
