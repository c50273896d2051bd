"""Positions by path in the merged document, conditions of a spec, and layout checks."""

from __future__ import annotations

from collections.abc import Iterator

from cfac.compiler.diagnostics import Diagnostics, Note, Span, did_you_mean
from cfac.compiler.model import PROCESS_KINDS, Component, Layout, Spec, Test
from cfac.compiler.overlay import state_entry
from cfac.compiler.yamlpos import ListNode, MapNode, Node, ScalarNode


def node_at(root: MapNode, path: tuple[str, ...]) -> Node | None:
    """The node that the keys of ``path`` lead to."""
    node: Node | None = root
    for key in path:
        node = node.get(key) if isinstance(node, MapNode) else None
    return node


def span_at(root: MapNode, path: tuple[str, ...], otherwise: Span) -> Span:
    """The position of the value at ``path``."""
    node = node_at(root, path)
    return node.span if node is not None else otherwise


def is_written(root: MapNode, path: tuple[str, ...]) -> bool:
    """Whether the spec says something at ``path``, well-formed or not."""
    node = node_at(root, path)
    return node is not None and not (isinstance(node, ListNode) and not node.items)


def state_options(root: MapNode, component: str, state: str) -> MapNode | None:
    """The options of a state, if it has any."""
    states = node_at(root, ("components", component, "states"))
    for item in states.items if isinstance(states, ListNode) else ():
        entry = state_entry(item)
        if entry is not None and entry[0].text == state and entry[1] is not None:
            return entry[1]
    return None


def may_wait(root: MapNode, component: str, state: str) -> bool:
    """Whether a state's options have an ``after``, or a key that might be one misspelt."""
    options = state_options(root, component, state)
    known = ("aux", "cost", "effects", "does", "idle", "before", "carries", "takes")
    return options is not None and any(key.text not in known for key, _ in options.entries)


def each_when(spec: Spec) -> Iterator[Test]:
    """Every test of every condition in a spec."""
    conditions = [component.when for component in spec.components.values()]
    conditions += [c.policy.when for c in spec.components.values() if c.policy is not None]
    conditions += [state.device.when for _, state in spec.transitions() if state.device]
    conditions += [state.imports_when for _, state in spec.transitions()]
    conditions += [site.when for binding in spec.bindings for site in binding.sites]
    for component in spec.components.values():
        if component.process is not None:
            process = component.process
            conditions += [site.when for kind in PROCESS_KINDS for site in process.of(kind)]
    if spec.engine is not None:
        conditions += [item.when for item in spec.engine.unsupported]
    for condition in conditions:
        if condition is not None:
            yield from condition.tests


def check_layouts(spec: Spec, root: MapNode, diagnostics: Diagnostics) -> None:
    """Layouts have a list for each replica, and indices that exist."""
    for layout in spec.layouts.values():
        if layout.derived:  # checked when its headers are read
            continue
        owner = spec.components.get(layout.component)
        if owner is None:
            hint = did_you_mean(layout.component, spec.components)
            message = f"unknown component {layout.component!r}"
            diagnostics.error("CF201", message, layout.span, help=hint)
            continue
        key = f"{layout.component}.{layout.relation}"
        node = node_at(root, ("layouts", key))
        if not isinstance(owner.replicas, int):
            count = "a parameter" if owner.replicas else "no replicas"
            diagnostics.error(
                "CF602",
                f"a literal layout needs a literal 'replicas', and {owner.name} has {count}",
                layout.span,
                notes=[Note(f"{owner.name} is declared here", owner.span)],
            )
        elif len(layout.lists) != owner.replicas:
            diagnostics.error(
                "CF601",
                f"{key} has {len(layout.lists)} lists for {owner.replicas} replicas",
                node.span if node is not None else layout.span,
                notes=[Note(f"{owner.name} is declared here", owner.span)],
                help="give one list for each replica, in order",
            )
        for target in _targets(spec, layout):
            _check_indices(layout, target, node, diagnostics)


def _targets(spec: Spec, layout: Layout) -> list[Component]:
    """The components that references reach through a layout."""
    names: dict[str, None] = {}
    for state in spec.components[layout.component].states:
        refs = [dependency.ref for dependency in state.after]
        refs += [effect.until for effect in state.effects if effect.until is not None]
        for ref in refs:
            if ref.index.kind == "layout" and ref.index.value == layout.relation:
                names[ref.component] = None
    return [spec.components[name] for name in names if name in spec.components]


def _check_indices(
    layout: Layout, target: Component, node: Node | None, diagnostics: Diagnostics
) -> None:
    if not isinstance(target.replicas, int) or not isinstance(node, ListNode):
        return
    for row in node.items:
        for item in row.items if isinstance(row, ListNode) else ():
            value = item.value if isinstance(item, ScalarNode) else None
            if isinstance(value, int) and value >= target.replicas:
                diagnostics.error(
                    "CF603",
                    f"{target.name}[{value}] does not exist: the last is [{target.replicas - 1}]",
                    item.span,
                    notes=[Note(f"{target.name} is declared here", target.span)],
                )
