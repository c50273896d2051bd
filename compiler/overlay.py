"""Overlays: a document laid over the one that it includes.

Given keys replace, others stay.  Components, parameters, bindings, layouts, refinements
and the engine are merged by key; ``chain``, ``merge``, ``channel`` and ``name`` are replaced
when given.  Nodes keep their own positions, so that a message about a merged spec
still points into the file that says it.
"""

from __future__ import annotations

from collections.abc import Callable

from cfac.compiler.diagnostics import Diagnostics, Note, Span
from cfac.compiler.yamlpos import ListNode, MapNode, Node, ScalarNode

Combine = Callable[[Node, Node, Diagnostics], Node]


def overlay(base: MapNode, top: MapNode, diagnostics: Diagnostics) -> MapNode:
    """``top`` laid over ``base``; ``include`` itself does not survive."""
    rules: dict[str, Combine] = {
        "components": _by_key(_component),
        "params": _by_key(_by_key(_replace)),
        "bind": _by_key(_by_key(_replace)),
        "layouts": _by_key(_replace),
        "refine": _by_key(_by_key(_replace)),
        "engine": _by_key(_replace),
    }
    return _merge(base, top, diagnostics, lambda key: rules.get(key, _replace))


def state_entry(node: Node) -> tuple[ScalarNode, MapNode | None] | None:
    """The name and the options of one entry of ``states``; None if it is malformed."""
    if isinstance(node, ScalarNode):
        return (node, None) if isinstance(node.value, str) else None
    if isinstance(node, MapNode) and node.entries:
        name, options = node.entries[0]
        return name, options if isinstance(options, MapNode) else None
    return None


def is_aux(options: MapNode | None) -> bool:
    """Whether a state's options say ``aux: true``."""
    value = options.get("aux") if options else None
    return isinstance(value, ScalarNode) and value.value is True


def _replace(base: Node, top: Node, diagnostics: Diagnostics) -> Node:
    return top


def _by_key(inner: Combine) -> Combine:
    def combine(base: Node, top: Node, diagnostics: Diagnostics) -> Node:
        if isinstance(base, MapNode) and isinstance(top, MapNode):
            return _merge(base, top, diagnostics, lambda key: inner)
        return top

    return combine


def _merge(
    base: MapNode, top: MapNode, diagnostics: Diagnostics, rule: Callable[[str], Combine]
) -> MapNode:
    entries: list[tuple[ScalarNode, Node]] = []
    for key, value in base.entries:
        above, above_key = top.get(key.text), top.key(key.text)
        if above is None or above_key is None:
            entries.append((key, value))
        else:
            entries.append((above_key, rule(key.text)(value, above, diagnostics)))
    entries += [(key, value) for key, value in top.entries if base.key(key.text) is None]
    return MapNode(tuple(entries), top.span)


def _component(base: Node, top: Node, diagnostics: Diagnostics) -> Node:
    if not (isinstance(base, MapNode) and isinstance(top, MapNode)):
        return top
    rules: dict[str, Combine] = {"process": _by_key(_replace)}
    states_key = top.key("states")
    if states_key is not None:
        at = states_key.span
        rules["states"] = lambda below, above, found: _states(below, above, at, found)
    return _merge(base, top, diagnostics, lambda key: rules.get(key, _replace))


def _states(base: Node, top: Node, at: Span, diagnostics: Diagnostics) -> Node:
    if not (isinstance(base, ListNode) and isinstance(top, ListNode)):
        return top
    below = {e[0].text: e for e in map(state_entry, base.items) if e is not None}
    above = [e for e in map(state_entry, top.items) if e is not None]
    _check_stock(below, above, at, diagnostics)
    merged: list[Node] = []
    for name, options in _with_missing(below, above):
        known = below.get(name.text)
        under = known[1] if known else None
        if options is not None and under is not None:
            options = _merge(under, options, diagnostics, lambda key: _replace)
        elif options is None:
            options = under
        merged.append(MapNode(((name, options),), name.span) if options is not None else name)
    return ListNode(tuple(merged), top.span)


def _with_missing(
    below: dict[str, tuple[ScalarNode, MapNode | None]],
    above: list[tuple[ScalarNode, MapNode | None]],
) -> list[tuple[ScalarNode, MapNode | None]]:
    """``above`` with the stock states that it wrongly leaves out.

    They are reported; putting them back spares the messages that would follow.
    """
    found = list(above)
    last = -1
    for name, options in below.values():
        names = [known.text for known, _ in found]
        if name.text in names:
            last = names.index(name.text)
        elif not is_aux(options):
            last += 1
            found.insert(last, (name, options))
    return found


def _check_stock(
    below: dict[str, tuple[ScalarNode, MapNode | None]],
    above: list[tuple[ScalarNode, MapNode | None]],
    at: Span,
    diagnostics: Diagnostics,
) -> None:
    """The base's stock states must all be there, in their order, and stay stock."""
    stock = [name for name, options in below.values() if not is_aux(options)]
    rank = {name.text: number for number, name in enumerate(stock)}
    given = {name.text: name for name, _ in above}
    for name in stock:
        if name.text not in given:
            diagnostics.error(
                "CF114",
                f"this list leaves out the stock state {name.text!r}",
                at,
                notes=[Note("declared here", name.span)],
                help="an overlay keeps all stock states, in their order, and adds auxiliary ones",
            )
    last: ScalarNode | None = None
    for name, options in above:
        if name.text not in rank:
            continue
        if options is not None and is_aux(options):
            diagnostics.error(
                "CF114",
                f"the stock state {name.text!r} cannot become auxiliary",
                name.span,
                notes=[Note("declared as a stock state here", below[name.text][0].span)],
            )
        if last is not None and rank[name.text] < rank[last.text]:
            diagnostics.error(
                "CF114",
                f"the stock state {name.text!r} comes before {last.text!r} in the included spec",
                name.span,
                notes=[Note("the order is declared here", below[name.text][0].span)],
                help="stock states must keep their order",
            )
        else:
            last = name
