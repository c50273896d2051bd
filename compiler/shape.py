"""Checks a document's shape and maps every pydantic error to a position."""

from __future__ import annotations

import types
import typing
from typing import Any

from pydantic import BaseModel, ValidationError

from cfac.compiler.diagnostics import Diagnostics, Span, did_you_mean
from cfac.compiler.schema import DocumentModel
from cfac.compiler.yamlpos import ListNode, MapNode, Node, ScalarNode, describe, to_data

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "nothing",
}
_Loc = tuple[int | str, ...]


class _Place:
    """Where an error location leads: the node, the key it is under, and the way."""

    def __init__(self, root: MapNode, loc: _Loc) -> None:
        self.node: Node = root
        self.key: ScalarNode | None = None
        self.path: list[str] = []
        self.rest: list[int | str] = []
        for step in loc:
            node = self.node
            if isinstance(node, MapNode) and isinstance(step, str) and node.get(step) is not None:
                self.key, self.node = node.key(step), typing.cast("Node", node.get(step))
                self.path.append(step)
            elif isinstance(node, ListNode) and isinstance(step, int) and step < len(node.items):
                self.key, self.node = None, node.items[step]
            elif not (isinstance(step, str) and step.startswith("<") and step.endswith(">")):
                self.rest.append(step)

    @property
    def owner(self) -> str:
        """The path in words, for messages."""
        return ".".join(self.path) if self.path else "the spec"

    @property
    def head(self) -> Span:
        """The key that introduces the node, else the node itself."""
        return self.key.span if self.key is not None else self.node.span


def check_shape(root: MapNode, diagnostics: Diagnostics) -> None:
    """Report every unknown or missing key and every value of a wrong kind."""
    try:
        DocumentModel.model_validate(to_data(root))
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_context=True)
        crowded = [e["loc"] for e in errors if e["type"] == "too_long"]
        for error in errors:
            loc = error["loc"]
            if any(loc[: len(c)] == c and loc != c for c in crowded):
                continue
            _report(root, loc, error["type"], error, diagnostics)


def _report(root: MapNode, loc: _Loc, kind: str, error: Any, diagnostics: Diagnostics) -> None:
    if kind == "extra_forbidden":
        _unknown_key(root, loc, diagnostics)
        return
    place = _Place(root, loc)
    if kind == "missing":
        diagnostics.error("CF108", f"{place.owner}: missing key {loc[-1]!r}", place.head)
        return
    node = place.node
    if kind == "string_pattern_mismatch":
        is_key = bool(place.rest) and place.rest[-1] == "[key]"
        text = place.key.text if is_key and place.key else getattr(node, "text", "")
        span = place.head if is_key else node.span
        hint = "a name has letters, digits, _ and -, and does not begin with a digit"
        diagnostics.error("CF110", f"{text!r} is not a name", span, help=hint)
        return
    diagnostics.error("CF109", *_wrong_value(kind, error, node), help=_hint(kind, error, node))


def _wrong_value(kind: str, error: Any, node: Node) -> tuple[str, Span]:
    context: dict[str, Any] = error.get("ctx", {})
    found = describe(node)
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, found {found}", node.span
    if kind == "shape":
        return f"{error['msg']}, found {found}", node.span
    if kind == "literal_error":
        return f"expected {context['expected']}, found {found}", node.span
    if kind in ("greater_than_equal", "greater_than"):
        bound = context.get("ge", context.get("gt"))
        return f"expected at least {bound}, found {found}", node.span
    if kind == "too_short":
        least, size = context.get("min_length", 1), _size(node)
        wanted = "one entry" if least == 1 else f"{least} entries"
        return f"expected at least {wanted}, found {size or 'none'}", node.span
    if kind == "too_long" and isinstance(node, ListNode):
        most = context["max_length"]
        return f"expected at most {most} entries, found {_size(node)}", node.span
    if kind == "too_long" and isinstance(node, MapNode):
        names = ", ".join(repr(key.text) for key, _ in node.entries)
        return f"expected one state in this entry, found {names}", node.entries[1][0].span
    return f"{error['msg']}, found {found}", node.span


def _hint(kind: str, error: Any, node: Node) -> str | None:
    if kind == "too_long" and isinstance(node, MapNode):
        return "indent the state's options below its name, or write {Ready: {after: core.Ready}}"
    if kind == "literal_error" and isinstance(node, ScalarNode):
        expected = str(error.get("ctx", {}).get("expected", ""))
        return did_you_mean(node.text, expected.replace("'", "").replace(" or ", ", ").split(", "))
    if isinstance(node, ScalarNode) and node.value is not None and kind == "string_type":
        return f'put it in quotes: "{node.text}"'
    return None


def _size(node: Node) -> int:
    if isinstance(node, ListNode):
        return len(node.items)
    return len(node.entries) if isinstance(node, MapNode) else 0


def _unknown_key(root: MapNode, loc: _Loc, diagnostics: Diagnostics) -> None:
    parent = _Place(root, loc[:-1])
    key = str(loc[-1])
    node = parent.node.key(key) if isinstance(parent.node, MapNode) else None
    known = _known_keys(loc[:-1])
    hint = did_you_mean(key, known)
    if hint is None and known:
        hint = "known keys: " + ", ".join(sorted(known))
    span = node.span if node is not None else parent.node.span
    diagnostics.error("CF107", f"unknown key {key!r} in {parent.owner}", span, help=hint)


def _known_keys(loc: _Loc) -> set[str]:
    """The keys that the models know at ``loc``."""
    at: list[Any] = [DocumentModel]
    for step in loc:
        further = [inner for tp in at for inner in _step(tp, step)]
        at = further or at  # a union's tag leads nowhere
    keys: set[str] = set()
    for tp in at:
        for plain in _unwrap(tp):
            if isinstance(plain, type) and issubclass(plain, BaseModel):
                fields = plain.model_fields
                keys.update(info.alias or name for name, info in fields.items())
    return keys


def _unwrap(tp: Any) -> list[Any]:
    """The members of unions and annotations, flattened."""
    origin = typing.get_origin(tp)
    if origin is typing.Annotated:
        return _unwrap(typing.get_args(tp)[0])
    if origin in (typing.Union, types.UnionType):
        return [plain for member in typing.get_args(tp) for plain in _unwrap(member)]
    return [tp]


def _step(tp: Any, step: int | str) -> list[Any]:
    found: list[Any] = []
    for plain in _unwrap(tp):
        origin, args = typing.get_origin(plain), typing.get_args(plain)
        if isinstance(plain, type) and issubclass(plain, BaseModel):
            for name, info in plain.model_fields.items():
                if (info.alias or name) == step:
                    found.append(info.annotation)
        elif origin is list and isinstance(step, int):
            found.append(args[0])
        elif origin is dict and isinstance(step, str) and not step.startswith("<"):
            found.append(args[1])
    return found
