"""From a spec to a scene: the template graph, or one lane per replica; cycles marked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from cfac.compiler.cycles import find_cycle
from cfac.compiler.draw.scene import (
    Edge,
    Group,
    Lane,
    Node,
    Scene,
    chain_positions,
    condition_text,
    edge_label,
    lane_order,
    node_kind,
)
from cfac.compiler.expand import Transition, count_of, expand, indices
from cfac.compiler.graph import Edge as GraphEdge
from cfac.compiler.graph import build, self_waits
from cfac.compiler.model import BIRTHS, Component, MergeGroup, Scalar, Spec, State, Test
from cfac.compiler.scc import cyclic_components, shortest_cycle
from cfac.compiler.theorem1 import prove

Mark = tuple[str, str, str]


def collapsed(spec: Spec) -> Scene:
    """The template graph: each component once, whatever its replica count."""
    chain = chain_positions(spec)
    lanes: list[Lane] = []
    nodes: list[Node] = []
    edges: list[Edge] = []
    for component, depth, parent in lane_order(spec):
        name = component.name
        count = "" if component.replicas is None else str(component.replicas)
        when = condition_text(component.when)
        lanes.append(Lane(name, name, name, count, when, depth, parent, component.span))
        for position, state in enumerate(component.states):
            nodes.append(_node(component, state, position, name, chain))
            node = nodes[-1].id
            if position:
                before = f"{name}.{component.states[position - 1].name}"
                edges.append(Edge(before, node, "own", span=state.span))
            edges += _dependencies(spec, component, state, node)
    groups = []
    for merge in spec.merges:
        members = [f"{ref.component}.{ref.state}" for ref in merge.of if spec.state_of(ref)]
        groups.append(Group(merge.name, tuple(dict.fromkeys(members)), merge.span))
    scene = Scene(spec.name, tuple(lanes), tuple(nodes), tuple(edges), tuple(groups))
    return _paint(scene, _template_cycles(spec))


def expanded(spec: Spec, counts: Mapping[str, int], absent: Collection[str] = ()) -> Scene:
    """One lane per replica for these counts; components in ``absent`` are left out."""
    graph = expand(spec, counts, absent)
    chain = chain_positions(spec)
    lanes: list[Lane] = []
    nodes: list[Node] = []
    edges: list[Edge] = []
    for component, depth, parent in lane_order(spec):
        if component.name in absent:
            continue
        count = count_of(spec, component, counts)
        when = condition_text(component.when)
        for place in [None] if count is None else range(count):
            lane = component.name if place is None else f"{component.name}[{place}]"
            lanes.append(Lane(lane, component.name, lane, "", when, depth, parent, component.span))
            for position, state in enumerate(component.states):
                nodes.append(_node(component, state, position, lane, chain))
            if len(component.states) > 1:  # the graph's nodes are transitions only
                first, second = component.states[:2]
                ends = f"{lane}.{first.name}", f"{lane}.{second.name}"
                edges.append(Edge(*ends, "own", span=second.span))
    edges += [
        Edge(
            graph.names[edge.source],
            graph.names[edge.target],
            edge.kind,
            edge.kind if edge.kind in BIRTHS else "",
            schedule=edge.schedule,
            reason=edge.reason,
            span=edge.span,
        )
        for edge in graph.edges
    ]
    order = {node.id: number for number, node in enumerate(nodes)}
    edges.sort(key=lambda edge: (order[edge.target], edge.kind != "own"))
    known = set(order)
    groups = [_replicas(spec, merge, counts, known) for merge in spec.merges]
    scene = Scene(
        spec.name,
        tuple(lanes),
        tuple(nodes),
        tuple(edges),
        tuple(group for group in groups if group.members),
        expanded=True,
    )
    marks: list[Mark] = []
    for members in cyclic_components(graph.successors):
        path = [graph.names[node] for node in shortest_cycle(graph.successors, members)]
        marks += [(a, b, "") for a, b in zip(path, [*path[1:], *path[:1]], strict=True)]
    return _paint(scene, marks)


def _node(
    component: Component, state: State, position: int, lane: str, chain: Mapping[str, int]
) -> Node:
    place = chain.get(f"{component.name}.{state.name}")
    kind = node_kind(component, state)
    name = f"{lane}.{state.name}"
    return Node(name, lane, state.name, kind, position, state.span, state.cost, place)


def _dependencies(spec: Spec, component: Component, state: State, node: str) -> list[Edge]:
    edges = []
    for dependency, kind in component.waits(state):
        ref = dependency.ref
        if spec.state_of(ref) is None:
            continue
        replicated = component.replicas is not None
        edges.append(
            Edge(
                f"{ref.component}.{ref.state}",
                node,
                kind,
                edge_label(ref.index, kind),
                dependency.schedule,
                dependency.reason,
                ref.span,
                carried=replicated and ref.index.kind in ("offset", "layout", "at"),
            )
        )
    return edges


def _replicas(
    spec: Spec, merge: MergeGroup, counts: Mapping[str, int], known: Collection[str]
) -> Group:
    """A group's members; one given by the replica's own index (``x[i]``) is left out."""
    members: list[str] = []
    for ref in merge.of:
        component = spec.components.get(ref.component)
        if component is None:
            continue
        count = count_of(spec, component, counts)
        places = indices(spec, component, None, ref.index, count)
        members += [str(Transition(ref.component, place, ref.state)) for place in places]
    found = tuple(name for name in dict.fromkeys(members) if name in known)
    return Group(merge.name, found, merge.span)


def _template_cycles(spec: Spec) -> list[Mark]:
    """The edges of one shortest cycle of each cyclic part."""
    graph = build(spec)
    marks: list[Mark] = []
    loops = self_waits(graph)
    for edge in loops:
        name = graph.nodes[edge.source].name
        marks.append((name, name, _label(edge)))
    graph = graph.without(edge.ref for edge in loops if edge.ref)
    for members in prove(graph).cyclic:
        cycle = find_cycle(graph, members)
        path = [
            (graph.nodes[node], graph.edges[at])
            for (node, _), at in zip(cycle.nodes, cycle.edges, strict=True)
        ]
        path = [(node, edge) for node, edge in path if node.state]  # joins are not drawn
        for place, (node, edge) in enumerate(path):
            target = path[(place + 1) % len(path)][0]
            marks.append((node.name, target.name, _label(edge)))
    return marks


def _label(edge: GraphEdge) -> str:
    return edge_label(edge.ref.index, edge.kind) if edge.ref else ""


def _paint(scene: Scene, marks: Iterable[Mark]) -> Scene:
    """``scene`` with the edges given as (source, target, label) shown as parts of a cycle."""
    marked = set(marks)
    if not marked:
        return scene
    touched = {name for source, target, _ in marked for name in (source, target)}
    return replace(
        scene,
        nodes=tuple(replace(node, cyclic=node.id in touched) for node in scene.nodes),
        edges=tuple(
            replace(edge, cyclic=(edge.source, edge.target, edge.label) in marked)
            for edge in scene.edges
        ),
    )


def absent(spec: Spec, values: Mapping[str, Scalar]) -> set[str]:
    """The components whose ``when`` is false for these parameter values.

    A test on a parameter without a given value, or on the version or platform, holds.
    """
    gone = set()
    for component in spec.components.values():
        tests = component.when.tests if component.when else ()
        for test in tests:
            kind, _, name = test.subject.partition(":")
            if kind == "param" and name in values and not _holds(test, values[name]):
                gone.add(component.name)
    return gone


def _holds(test: Test, actual: Scalar) -> bool:
    wanted = test.value
    if test.op == "is":
        return actual == wanted
    if test.op == "not":
        return actual != wanted
    if test.op == "in":
        return actual in (wanted if isinstance(wanted, tuple) else (wanted,))
    if test.op == "matches":
        return re.fullmatch(str(wanted), str(actual)) is not None
    if isinstance(actual, (int, float)) and isinstance(wanted, (int, float)):
        return actual > wanted if test.op == "above" else actual < wanted
    return True
