"""The graph for given counts, with one node per replica (paper section 3.1).

This is what ``cfac graph --expand`` draws and what the tests hold the template's proof
against; it is built from the spec alone, not from the template graph.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cfac.compiler.diagnostics import Span
from cfac.compiler.model import Component, Index, Ref, Spec, WaitKind


@dataclass(frozen=True, slots=True)
class Transition:
    """One transition of one replica; ``index`` is None where there are no replicas."""

    component: str
    index: int | None
    state: str

    def __str__(self) -> str:
        at = "" if self.index is None else f"[{self.index}]"
        return f"{self.component}{at}.{self.state}"


class ExpandedEdge(NamedTuple):
    """``target`` comes after ``source``; ``ref`` is None where that is its own order."""

    source: int
    target: int
    kind: Literal["own"] | WaitKind = "own"
    ref: Ref | None = None
    schedule: bool = False
    span: Span | None = None
    reason: str | None = None


@dataclass(slots=True)
class Expanded:
    """An integer-indexed graph: ``successors[n]`` and ``names[n]`` belong to node ``n``."""

    transitions: list[Transition] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    edges: list[ExpandedEdge] = field(default_factory=list)
    ids: dict[Transition, int] = field(default_factory=dict)


def count_of(spec: Spec, component: Component, counts: Mapping[str, int]) -> int | None:
    """How many replicas there are; None for a component that is not replicated."""
    replicas = component.replicas
    if not isinstance(replicas, str):
        return replicas
    if replicas in counts:
        return counts[replicas]
    if replicas in spec.counts:
        return spec.counts[replicas]
    param = spec.params.get(replicas)
    default = param.default if param else None
    return default if isinstance(default, int) else 1


def indices(
    spec: Spec, waiter: Component, place: int | None, index: Index, count: int | None
) -> list[int | None]:
    """The replicas (of a component with ``count`` of them) that a reference means.

    ``place`` is the replica of ``waiter`` at which it stands.  A reference that is out of
    range is absent, and so is one whose index does not fit the component.
    """
    if count is None:
        return [None] if index.kind in ("none", "all") else []
    wanted: list[int] = []
    if index.kind == "all":
        wanted = list(range(count))
    elif index.kind == "at" and isinstance(index.value, int):
        wanted = [index.value]
    elif index.kind == "offset" and place is not None:
        wanted = [place + int(index.value or 0)]
    elif index.kind == "layout" and place is not None:
        layout = spec.layouts.get((waiter.name, str(index.value)))
        if layout and place < len(layout.lists):
            wanted = list(dict.fromkeys(layout.lists[place]))
    return [k for k in wanted if 0 <= k < count]


def expand(spec: Spec, counts: Mapping[str, int], absent: Container[str] = ()) -> Expanded:
    """The graph of ``spec`` for these parameter values.

    Components named in ``absent`` (their ``when`` is false) are left out and satisfy
    every reference to them.  A parameter without a value takes its default, else 1.
    """
    graph = Expanded()
    present = [c for c in spec.components.values() if c.name not in absent]
    number = {c.name: count_of(spec, c, counts) for c in present}
    for component in present:
        count = number[component.name]
        for state in component.states[1:]:
            for place in [None] if count is None else range(count):
                transition = Transition(component.name, place, state.name)
                graph.ids[transition] = len(graph.transitions)
                graph.transitions.append(transition)
                graph.names.append(str(transition))
                graph.successors.append([])
    for component in present:
        count = number[component.name]
        for place in [None] if count is None else range(count):
            before = None
            for state in component.states[1:]:
                target = graph.ids[Transition(component.name, place, state.name)]
                if before is not None:
                    graph.edges.append(ExpandedEdge(before, target, span=state.span))
                before = target
                for dependency, kind in component.waits(state):
                    ref = dependency.ref
                    if ref.component not in number:
                        continue
                    for at in indices(spec, component, place, ref.index, number[ref.component]):
                        source = graph.ids.get(Transition(ref.component, at, ref.state))
                        if source is not None:
                            graph.edges.append(
                                ExpandedEdge(source, target, kind, ref, dependency.schedule,
                                             ref.span, dependency.reason)
                            )  # fmt: skip
    for edge in graph.edges:
        graph.successors[edge.source].append(edge.target)
    return graph
