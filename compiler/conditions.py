"""``when``: conditions on parameters, the engine's version and the platform."""

from __future__ import annotations

import re
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.model import Condition, Scalar, Test
from cfac.compiler.nodes import entries, items, scalar, text_node, texts
from cfac.compiler.yamlpos import ListNode, MapNode, Node, ScalarNode

Op = Literal["is", "not", "in", "above", "below", "matches"]
_OPS: tuple[Op, ...] = ("is", "not", "in", "above", "below", "matches")


def build_condition(node: Node | None, diagnostics: Diagnostics) -> Condition | None:
    """The condition in ``node``; None where there is none."""
    if not isinstance(node, (MapNode, ListNode)):
        return None
    tests: list[Test] = []
    for item in items(node):
        if isinstance(item, MapNode):
            tests += _tests(item, diagnostics)
    return Condition(tuple(tests), node.span)


def build_specifier(node: Node | None, diagnostics: Diagnostics) -> str | None:
    """A version specifier, checked."""
    found = text_node(node)
    if found is None:
        return None
    try:
        SpecifierSet(found.text)
    except InvalidSpecifier:
        message = f"{found.text!r} is not a version specifier"
        hint = "write one as in '>=0.32,<0.33' or '==0.32.0'"
        diagnostics.error("CF109", message, found.span, help=hint)
    return found.text


def _tests(node: MapNode, diagnostics: Diagnostics) -> list[Test]:
    found: list[Test] = []
    version, platform = node.get("version"), node.get("platform")
    param = text_node(node.get("param"))
    if version is not None and (specifier := build_specifier(version, diagnostics)):
        found.append(Test("version", "matches", specifier, version.span))
    if platform is not None and (names := texts(platform)):
        if isinstance(platform, ScalarNode):
            found.append(Test("platform", "is", platform.text, platform.span))
        else:
            values = tuple(name.text for name in names)
            found.append(Test("platform", "in", values, platform.span))
    ops = [op for op in _OPS if node.key(op) is not None]
    if node.key("param") is None:
        for op in ops:
            key = node.key(op)
            message = f"{op!r} needs the parameter that it tests"
            hint = f"write {{param: NAME, {op}: VALUE}}"
            diagnostics.error("CF109", message, key.span if key else node.span, help=hint)
        if not entries(node):
            diagnostics.error("CF109", "the condition is empty", node.span)
        return found
    if not ops:
        key = node.key("param")
        message = "the condition does not say what the parameter must be"
        hint = "add one of: is, not, in, above, below, matches"
        diagnostics.error("CF109", message, key.span if key else node.span, help=hint)
    if param is not None:
        subject = f"param:{param.text}"
        found += [Test(subject, op, _value(node, op, diagnostics), param.span) for op in ops]
    return found


def _value(node: MapNode, op: Op, diagnostics: Diagnostics) -> Scalar | tuple[Scalar, ...]:
    value = node.get(op)
    if op == "in":
        return tuple(scalar(item) for item in items(value))
    if op == "matches" and (pattern := text_node(value)) is not None:
        try:
            re.compile(pattern.text)
        except re.error as error:
            message = f"not a regular expression: {error}"
            diagnostics.error("CF109", message, pattern.span)
    return scalar(value)
