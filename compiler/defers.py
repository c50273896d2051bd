"""Builds ``defer``: work of the engine's imports that is moved to its first use.

The shape is already checked; what has the wrong one is left out without a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.model import Defer
from cfac.compiler.nodes import items, text, text_node, texts
from cfac.compiler.recordings import MODULE
from cfac.compiler.yamlpos import MapNode

_A = {"decorator": "a decorator", "import": "an import"}
_PLACE = re.compile(rf"(?:{MODULE.pattern})(?:\.\*\*)?")


def build_defers(root: MapNode, diagnostics: Diagnostics) -> Iterator[Defer]:
    """The entries of a spec's ``defer``."""
    engine = root.get("engine")
    package = text(engine.get("package")) if isinstance(engine, MapNode) else None
    key = root.key("defer")
    if key is not None and package is None:
        message = "'defer' changes an engine, but the spec names none"
        diagnostics.error("CF108", message, key.span, help="engine: {package: NAME, versions: ...}")
        return
    for item in items(root.get("defer")):
        if isinstance(item, MapNode):
            yield from _defer(item, package or "", diagnostics)


def _defer(item: MapNode, package: str, diagnostics: Diagnostics) -> Iterator[Defer]:
    kinds: list[Literal["decorator", "call", "import"]] = ["decorator", "call", "import"]
    given = [kind for kind in kinds if item.get(kind) is not None]
    if len(given) != 1:
        message = "an entry of 'defer' names one of 'decorator', 'call' and 'import'"
        diagnostics.error("CF109", message, item.span)
        return
    kind = given[0]
    named = texts(item.get(kind))
    until, places = text_node(item.get("until")), texts(item.get("in"))
    if kind == "call" and until is None:
        for name in named:
            message = f"the call {name.text!r} is deferred, but 'until' does not say until when"
            hint = "until: MODULE makes the call once that module has been imported"
            diagnostics.error("CF109", message, name.span, help=hint)
        return
    if kind != "call" and until is not None:
        message = f"{_A[kind]} is deferred until its first use"
        diagnostics.error("CF109", message, until.span, help="leave 'until' out")
        return
    forms = [(name, MODULE) for name in named]
    forms += [(place, MODULE if kind == "import" else _PLACE) for place in places]
    forms += [(until, MODULE)] if until is not None else []
    for node, form in forms:
        if not form.fullmatch(node.text):
            message = f"{node.text!r} is not a dotted name"
            hint = "a module is written as in vllm.env_override"
            diagnostics.error("CF109", message, node.span, help=hint)
            return
    for place in places:
        inside = place.text.split(".")[0] == package
        if not inside and (kind != "decorator" or place.text.endswith("**")):
            message = f"{place.text!r} is not in the engine package {package!r}"
            hint = (
                "outside of it, a decorator can be deferred, in modules that are named one by one"
            )
            diagnostics.error("CF403", message, place.span, help=hint)
            return
    for name in named if places else ():
        yield Defer(
            kind,
            name.text,
            tuple(place.text for place in places),
            name.span,
            until.text if until is not None else None,
        )
