"""The neutral drawing: what is shown, before any format or position.

One lane per component (or replica), one node per state, edges for a component's own
order and for its dependencies.  All formats are written from this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cfac.compiler.diagnostics import Span
from cfac.compiler.model import BIRTHS, Component, Condition, Index, Spec, State, Test, WaitKind

NodeKind = Literal["initial", "stock", "aux"]
EdgeKind = Literal["own"] | WaitKind


@dataclass(frozen=True, slots=True)
class Lane:
    """One component.  ``count`` tells of replicas drawn as one, ``condition`` of its ``when``."""

    id: str
    component: str
    label: str
    count: str
    condition: str
    depth: int
    parent: str | None
    span: Span

    @property
    def note(self) -> str:
        """The count as shown beside the name."""
        return f"\N{MULTIPLICATION SIGN}{self.count}" if self.count else ""


@dataclass(frozen=True, slots=True)
class Node:
    """One state.  ``chain`` is its place in the stock chain, from 1."""

    id: str
    lane: str
    label: str
    kind: NodeKind
    position: int
    span: Span
    cost: float | None = None
    chain: int | None = None
    cyclic: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """``target`` comes after ``source``.

    ``label`` says which replicas of the source are meant, or that it is a birth.
    ``carried`` edges may lead to an earlier state of the drawing without being a cycle:
    they are about another replica.
    """

    source: str
    target: str
    kind: EdgeKind
    label: str = ""
    schedule: bool = False
    reason: str | None = None
    span: Span | None = None
    carried: bool = False
    cyclic: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Transitions merged into one."""

    name: str
    members: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole drawing; every list is in a stable order."""

    name: str
    lanes: tuple[Lane, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    groups: tuple[Group, ...]
    expanded: bool = False

    @property
    def cyclic(self) -> bool:
        """Whether a cycle is drawn."""
        return any(edge.cyclic for edge in self.edges)

    def by_lane(self) -> Mapping[str, list[Node]]:
        """The nodes of each lane in order."""
        lanes: dict[str, list[Node]] = {lane.id: [] for lane in self.lanes}
        for node in self.nodes:
            lanes[node.lane].append(node)
        return lanes


def condition_text(condition: Condition | None) -> str:
    """A ``when`` in words: ``executor is mp and tp above 1``."""
    if condition is None:
        return ""
    return " and ".join(_test_text(test) for test in condition.tests)


def _test_text(test: Test) -> str:
    value = test.value
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{test.subject.removeprefix('param:')} {test.op} {text}"


def lane_order(spec: Spec) -> list[tuple[Component, int, str | None]]:
    """Components in process-tree order, each with its depth and its parent's name."""
    children: dict[str | None, list[Component]] = defaultdict(list)
    for component in spec.components.values():
        parent = component.process.spawned_by if component.process else None
        children[parent if parent in spec.components else None].append(component)
    order: list[tuple[Component, int, str | None]] = []
    seen: set[str] = set()

    def visit(component: Component, depth: int, parent: str | None) -> None:
        if component.name in seen:
            return
        seen.add(component.name)
        order.append((component, depth, parent))
        for child in children[component.name]:
            visit(child, depth + 1, component.name)

    for component in children[None]:
        visit(component, 0, None)
    for component in spec.components.values():  # a spawned_by loop: an error, drawn all the same
        visit(component, 0, None)
    return order


def edge_label(index: Index, kind: str) -> str:
    """The label of a dependency's edge."""
    return kind if kind in BIRTHS else index_label(index)


def index_label(index: Index) -> str:
    """The label of an edge for an index form: ``*``, ``i-1``, ``self.chunks``, ``[0]``."""
    if index.kind == "all":
        return "*"
    if index.kind == "offset":
        offset = int(index.value or 0)
        return "i" if offset == 0 else f"i{offset:+d}"
    if index.kind == "at":
        return f"[{index.value}]"
    return f"self.{index.value}" if index.kind == "layout" else ""


def node_kind(component: Component, state: State) -> NodeKind:
    """How a state is shown."""
    if state is component.states[0]:
        return "initial"
    return "aux" if state.aux else "stock"


def chain_positions(spec: Spec) -> dict[str, int]:
    """``component.State`` -> place in the chain, from 1; a place is shared by ``a | b``."""
    places: dict[str, int] = {}
    for number, step in enumerate(spec.chain, 1):
        for ref in step:
            places.setdefault(f"{ref.component}.{ref.state}", number)
    return places
