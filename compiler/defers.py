"""Builds ``defer``: work of the engine's imports that is moved to its first use.

The shape is already checked; what has the wrong one is left out without a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.model import Defer
from cfac.compiler.nodes import items, text, text_node, texts
from cfac.compiler.recordings import MODULE
from cfac.compiler.yamlpos import MapNode

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
    decorator, call = text_node(item.get("decorator")), text_node(item.get("call"))
    until = text_node(item.get("until"))
    named = decorator or call
    if named is None or (decorator and call):
        message = "an entry of 'defer' names either a 'decorator' or a 'call'"
        diagnostics.error("CF109", message, item.span)
        return
    if call is not None and until is None:
        message = f"the call {call.text!r} is deferred, but 'until' does not say until when"
        hint = "until: MODULE makes the call once that module has been imported"
        diagnostics.error("CF109", message, call.span, help=hint)
        return
    if decorator is not None and until is not None:
        message = "a decorator is deferred until the first call of what it decorates"
        diagnostics.error("CF109", message, until.span, help="leave 'until' out")
        return
    places = texts(item.get("in"))
    outside = [place for place in places if place.text.split(".")[0] != package]
    for place in outside:
        if call is not None or place.text.endswith("**"):
            message = f"{place.text!r} is not in the engine package {package!r}"
            hint = (
                "outside of it, a decorator can be deferred, in modules that are named one by one"
            )
            diagnostics.error("CF403", message, place.span, help=hint)
            return
    for found, form in ((named, MODULE), *((p, _PLACE) for p in places), (until, MODULE)):
        if found is not None and not form.fullmatch(found.text):
            message = f"{found.text!r} is not a dotted name"
            hint = "a module is written as in vllm.env_override"
            diagnostics.error("CF109", message, found.span, help=hint)
            return
    if places:
        yield Defer(
            "call" if decorator is None else "decorator",
            named.text,
            tuple(place.text for place in places),
            named.span,
            until.text if until is not None else None,
        )
