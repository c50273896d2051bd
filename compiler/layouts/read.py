"""The ``refine:`` part of a spec, from nodes to frozen data."""

from __future__ import annotations

import os
import re
from typing import Final

from cfac.compiler.diagnostics import Diagnostics, Span
from cfac.compiler.model import Refine
from cfac.compiler.nodes import entries, scalar, text, texts, whole
from cfac.compiler.yamlpos import MapNode, Node, ScalarNode

#: The derived components, and the parameters that their counts are.
CHUNK: Final = "chunk"
PIECE: Final = "piece"
COUNTS: Final = {"chunks": "chunks", "pieces": "pieces"}
RING: Final = 16
_SIZE = re.compile(r"([0-9]{1,15})\s*(B|KiB|MiB|GiB)?")
_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PAGE = 4096


def parse_size(value: object) -> int | None:
    """Bytes of ``8MiB``, ``8388608`` or 8388608; None for ``auto``; ValueError otherwise."""
    if value in (None, "auto"):
        return None
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a size: write 8MiB, a number of bytes, or auto")
    size = int(match[1]) * _UNITS[match[2]]
    if size % PAGE or not 0 < size <= 1 << 40:
        raise ValueError(f"a chunk of {size} bytes: it must be a multiple of 4096, 1 TiB at most")
    return size


def build_refines(node: Node | None, diagnostics: Diagnostics) -> tuple[Refine, ...]:
    """The refinements of a spec; those without a chunk's states are left out, and reported."""
    found: list[Refine] = []
    for key, value in entries(node):
        if isinstance(value, MapNode) and (refine := _refine(key, value, diagnostics)):
            found.append(refine)
    return tuple(found)


def _states(
    node: Node | None, key: ScalarNode, default: tuple[str, ...]
) -> tuple[tuple[str, Span], ...]:
    found = tuple((item.text, item.span) for item in texts(node))
    return found or tuple((name, key.span) for name in default)


def _refine(key: ScalarNode, node: MapNode, diagnostics: Diagnostics) -> Refine | None:
    missing = [word for word in ("layout", "chunk") if node.key(word) is None]
    for word in missing:
        message = f"refine.{key.text}: missing key {word!r}"
        diagnostics.error("CF108", message, key.span)
    if missing:
        return None
    layout, size = node.get("layout"), node.get("chunk_size")
    if isinstance(layout, ScalarNode) and layout.value != "safetensors":
        message = f"{layout.text!r} is not a layout: there is 'safetensors'"
        diagnostics.error("CF109", message, layout.span)
    path = layout.get("safetensors") if isinstance(layout, MapNode) else None
    model = text(path)
    if model is not None and path is not None:
        model = os.path.join(os.path.dirname(path.span.file), model)  # noqa: PTH118, PTH120
    chunk_size: int | None = None
    try:
        chunk_size = parse_size(scalar(size))
    except ValueError as error:
        diagnostics.error("CF623", str(error), size.span if size else key.span)
    ring = node.get("ring")
    return Refine(
        component=key.text,
        span=key.span,
        chunk=_states(node.get("chunk"), key, ()),
        piece=_states(node.get("piece"), key, ("Alloc", "Copied")),
        states=_states(node.get("states"), key, ("Alloc", "Loaded")),
        ring=whole(ring) or RING,
        ring_span=ring.span if ring is not None else key.span,
        depth=whole(node.get("depth")) or 1,
        release="tensors" if text(node.get("release")) == "tensors" else "pieces",
        chunk_size=chunk_size,
        chunk_size_span=size.span if size is not None else None,
        model=model,
        model_span=path.span if path is not None else None,
    )
