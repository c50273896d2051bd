"""Tolerant readers of nodes: what has the wrong shape reads as absent.

``shape`` has reported wrong shapes by the time these are used.
"""

from __future__ import annotations

from cfac.compiler.model import Scalar
from cfac.compiler.yamlpos import ListNode, MapNode, Node, ScalarNode


def entries(node: Node | None) -> tuple[tuple[ScalarNode, Node], ...]:
    """The entries of a mapping."""
    return node.entries if isinstance(node, MapNode) else ()


def items(node: Node | None) -> tuple[Node, ...]:
    """The items of a list; a single mapping or text counts as a list of one."""
    if isinstance(node, ListNode):
        return node.items
    if isinstance(node, ScalarNode) and node.value is None:
        return ()
    return () if node is None else (node,)


def text_node(node: Node | None) -> ScalarNode | None:
    """The node, if it is text."""
    return node if isinstance(node, ScalarNode) and isinstance(node.value, str) else None


def text(node: Node | None) -> str | None:
    """The text of a node, if it is text."""
    found = text_node(node)
    return found.text if found else None


def texts(node: Node | None) -> tuple[ScalarNode, ...]:
    """The texts of a list, or the one text."""
    return tuple(found for item in items(node) if (found := text_node(item)) is not None)


def scalar(node: Node | None) -> Scalar:
    """The value of a scalar node."""
    return node.value if isinstance(node, ScalarNode) else None


def boolean(node: Node | None) -> bool:
    """Whether the node says true."""
    return scalar(node) is True


def whole(node: Node | None) -> int | None:
    """The whole number of a node."""
    value = scalar(node)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
