"""What belongs to the language but is not built yet (CF112)."""

from __future__ import annotations

from cfac.compiler.diagnostics import Diagnostics, Span
from cfac.compiler.yamlpos import MapNode

_LATER = {
    "spec": ("exports",),
}


def refuse_later(node: MapNode, where: str, diagnostics: Diagnostics) -> None:
    """Refuse the keys of ``node`` that come with a later version."""
    for word in _LATER[where]:
        key = node.key(word)
        if key is not None:
            not_built(f"{word!r}", key.span, diagnostics)


def not_built(what: str, span: Span, diagnostics: Diagnostics) -> None:
    """Refuse one construct: ignoring it would change what the spec means."""
    hint = "it comes with a later version; leave it out for now"
    diagnostics.error("CF112", f"{what} is known, but not built yet", span, help=hint)
