"""The reference grammar, with errors that point at the wrong character.

::

    ref   = name [ "[" index "]" | ".*" ] "." name
    index = "i" [ ("+" | "-") digits ] | digits | "self." name
"""

from __future__ import annotations

import re

from cfac.compiler.diagnostics import Diagnostics, Span
from cfac.compiler.model import Index, Ref
from cfac.compiler.yamlpos import ScalarNode

NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_-]*"
REF_PATTERN = (
    rf"^{NAME_PATTERN}(\.\*|\[(i([+-][0-9]+)?|[0-9]+|self\.{NAME_PATTERN})\])?\.{NAME_PATTERN}$"
)
FORMS = "core.Ready, worker.*.Ready, worker[i-1].Ready, worker[0].Ready or chunk[self.chunks].Ready"

_NAME = re.compile(NAME_PATTERN)
_PLAIN = re.compile(rf"({NAME_PATTERN})\.({NAME_PATTERN})")
_NO_INDEX = Index()
_OFFSET = re.compile(r"i(?:([+-])([0-9]{1,9}))?")
_NUMBER = re.compile(r"[0-9]{1,9}")
_LAYOUT = re.compile(rf"self\.({NAME_PATTERN})")


class _BadRefError(Exception):
    def __init__(self, message: str, start: int, end: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.start, self.end, self.hint = message, start, end, hint


def parse_ref(
    node: ScalarNode, diagnostics: Diagnostics, start: int = 0, end: int | None = None
) -> Ref | None:
    """The reference in ``node.text[start:end]``; None after an error."""
    stop = len(node.text) if end is None else end
    plain = _PLAIN.fullmatch(node.text, start, stop)
    if plain:  # most of them
        return Ref(plain[1], plain[2], _NO_INDEX, node.part(start, stop))
    try:
        component, index, state = _parse(node.text[start:stop])
    except _BadRefError as bad:
        span = node.part(start + bad.start, start + max(bad.end, bad.start + 1))
        diagnostics.error("CF111", bad.message, span, help=bad.hint or f"write {FORMS}")
        return None
    return Ref(component, state, index, node.part(start, stop))


def own_ref(node: ScalarNode, owner: str, indexed: bool, diagnostics: Diagnostics) -> Ref | None:
    """A reference, or the bare name of a state of ``owner``: of the same replica."""
    if _NAME.fullmatch(node.text):
        index = Index("offset", 0) if indexed else Index()
        return Ref(owner, node.text, index, node.text_span)
    return parse_ref(node, diagnostics)


def component_span(ref: Ref) -> Span:
    """The position of the component's name in a reference."""
    return _sub_span(ref, 0, len(ref.component))


def state_span(ref: Ref) -> Span:
    """The position of the state's name in a reference."""
    length = len(str(ref))
    return _sub_span(ref, length - len(ref.state), length)


def index_span(ref: Ref) -> Span:
    """The position of a reference's index, or of all of it where it has none."""
    length = len(str(ref))
    if ref.index.kind == "none":
        return ref.span
    return _sub_span(ref, len(ref.component), length - len(ref.state) - 1)


def _sub_span(ref: Ref, start: int, end: int) -> Span:
    span = ref.span
    if span.end_column - span.column != len(str(ref)):
        return span  # quoted over several lines, or an unusual spelling
    return Span(span.file, span.line, span.column + start, span.column + end)


def _parse(text: str) -> tuple[str, Index, str]:
    component, at = _name(text, 0, "a component's name")
    index = Index()
    if text.startswith("[", at):
        index, at = _index(text, at)
    elif text.startswith(".*", at):
        index, at = Index("all"), at + 2
    if not text.startswith(".", at):
        if at == len(text):
            raise _BadRefError(
                f"{text!r} names no state",
                0,
                at,
                "a reference is component.State, as core.Ready",
            )
        raise _unexpected(text, at, "'.'")
    state, at = _name(text, at + 1, "a state's name")
    if at != len(text):
        raise _unexpected(text, at, "the end of the reference")
    return component, index, state


def _name(text: str, at: int, what: str) -> tuple[str, int]:
    match = _NAME.match(text, at)
    if match is None:
        raise _unexpected(text, at, what)
    return match.group(), match.end()


def _index(text: str, at: int) -> tuple[Index, int]:
    close = text.find("]", at)
    if close < 0:
        raise _BadRefError("'[' is never closed", at, at + 1)
    inner = text[at + 1 : close]
    if offset := _OFFSET.fullmatch(inner):
        sign, digits = offset.groups()
        value = int(digits or 0) * (-1 if sign == "-" else 1)
        return Index("offset", value), close + 1
    if _NUMBER.fullmatch(inner):
        return Index("at", int(inner)), close + 1
    if layout := _LAYOUT.fullmatch(inner):
        return Index("layout", layout.group(1)), close + 1
    hint = "an index is i, i-1, i+1, a number, or self.RELATION"
    if inner == "*":
        hint = f"all replicas are written {text[:at]}.*{text[close + 1 :]}"
    message = f"{inner!r} is not an index" if inner else "the index is empty"
    raise _BadRefError(message, at + 1, close, hint)


def _unexpected(text: str, at: int, wanted: str) -> _BadRefError:
    if at >= len(text):
        return _BadRefError(f"the reference ends where {wanted} is expected", max(at - 1, 0), at)
    return _BadRefError(f"unexpected {text[at]!r}, expected {wanted}", at, at + 1)
