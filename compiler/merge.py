"""Merging: sets of transitions that run as one each (paper sections 3.1 and 4.2).

Legal iff the sets are disjoint and the graph stays acyclic, for every count, when all
of them are contracted *together*: two groups that are fine alone can wait for each
other.  A group of ``x[i].S`` members is one group per replica; one with ``x.*.S`` is a
single group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cfac.compiler.calm import calm
from cfac.compiler.cycles import Cycle, chain_text, edge_note, find_cycle, words
from cfac.compiler.diagnostics import Diagnostic, Diagnostics, Note, Span
from cfac.compiler.graph import Edge, Graph, Node, build
from cfac.compiler.model import Dependency, MergeGroup, Ref, Spec
from cfac.compiler.scc import strongly_connected
from cfac.compiler.theorem1 import prove


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait of a merged transition: ``member`` is the transition that declares it."""

    member: Ref
    dependency: Dependency


@dataclass(frozen=True, slots=True)
class Merged:
    """One group: it starts when ``waits`` hold and all members' components have reached
    the state before; at its end it publishes ``members`` in this order.

    ``per_replica``: one group for each index i.
    """

    name: str
    per_replica: bool
    members: tuple[Ref, ...]
    waits: tuple[Wait, ...]
    before: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which group each node belongs to, and where the group says so."""

    groups: tuple[MergeGroup, ...]
    of: Mapping[int, int]
    entries: Mapping[int, Ref]


def is_per_replica(group: MergeGroup) -> bool:
    """Whether there is one such group per replica."""
    return any(ref.index.kind == "offset" for ref in group.of)


def group_nodes(spec: Spec, graph: Graph, out: Diagnostics) -> Grouping:
    """Read the ``merge`` entries; report members that cannot be merged (CF320, 322, 323, 324)."""
    of: dict[int, int] = {}
    entries: dict[int, Ref] = {}
    for number, group in enumerate(spec.merges):
        if not _uniform(spec, group, out):
            continue
        known = 0
        for ref in group.of:
            nodes = _members(spec, graph, ref, out)
            known += 2 if _all_replicas(spec, ref) else len(nodes)
            for node in nodes:
                if node not in of:
                    of[node], entries[node] = number, ref
                    continue
                other = spec.merges[of[node]]
                where = "twice in this group" if other is group else f"in group {other.name!r} too"
                out.error(
                    "CF320",
                    f"{graph.nodes[node].label()} is {where}",
                    ref.span,
                    notes=[Note("the first time here", entries[node].span)],
                    help="the groups of a merge are disjoint: remove one of the entries",
                )
                break
        if known == 1:
            out.warning(
                "CF324",
                f"group {group.name!r} merges a single transition",
                group.span,
                help="a merge takes at least two transitions; write x.*.S for all replicas",
            )
    return Grouping(spec.merges, of, entries)


def _all_replicas(spec: Spec, ref: Ref) -> bool:
    component = spec.components.get(ref.component)
    return ref.index.kind == "all" and component is not None and component.replicas is not None


def _uniform(spec: Spec, group: MergeGroup, out: Diagnostics) -> bool:
    """Whether the members have the same kind of replication."""
    if not is_per_replica(group):
        return True
    counts: dict[int | str | None, Ref] = {}
    for ref in group.of:
        component = spec.components.get(ref.component)
        if component is None:
            continue
        if ref.index.kind != "offset" or ref.index.value not in (0, None):
            out.error(
                "CF322",
                f"group {group.name!r} is one group per replica, but {ref} is not a member of "
                "replica i",
                ref.span,
                help="use x[i].S for all members (one group per replica), "
                "or x.*.S (one group for all)",
            )
            return False
        counts.setdefault(component.replicas, ref)
    if len(counts) > 1:
        out.error(
            "CF322",
            f"the members of group {group.name!r} have different replica counts: "
            + ", ".join(f"{ref.component} has {count}" for count, ref in counts.items()),
            group.span,
            notes=[Note(f"{ref.component} is used here", ref.span) for ref in counts.values()],
            help="one group per replica needs the same `replicas` for all members",
        )
        return False
    return True


def _members(spec: Spec, graph: Graph, ref: Ref, out: Diagnostics) -> list[int]:
    """The nodes that a member stands for."""
    component, state = spec.components.get(ref.component), spec.state_of(ref)
    if component is None or state is None:
        return []
    if component.position(state.name) == 0:
        out.error(
            "CF323",
            f"{component.name}.{state.name} is an initial state: nothing enters it",
            ref.span,
            notes=[Note("declared here", state.span)],
            help="a merge takes transitions, named by the state they enter",
        )
        return []
    nodes = graph.ids[component.name, state.name]
    if component.replicas is None or ref.index.kind in ("none", "all", "offset"):
        return nodes
    at = ref.index.value
    symbolic = bool(nodes) and graph.nodes[nodes[0]].symbolic
    if ref.index.kind == "at" and isinstance(at, int) and not symbolic and 0 <= at < len(nodes):
        return [nodes[at]]
    out.error(
        "CF322",
        f"{ref} cannot be merged: it does not name replicas that exist for every count",
        ref.span,
        help="use x[i].S for one group per replica, or x.*.S for one group of all",
    )
    return []


def quotient(graph: Graph, grouping: Grouping) -> Graph:
    """The graph with every group contracted to one node (per replica where it is per replica)."""
    result = Graph(base=graph)
    number = result.number
    known: dict[tuple[int, int | None], int] = {}
    single: set[int] = set()
    for at, node in enumerate(graph.nodes):
        group = grouping.of.get(at)
        if group is None:
            number.append(len(result.nodes))
            result.nodes.append(node)
            continue
        per_replica = is_per_replica(grouping.groups[group])
        if not per_replica and node.symbolic:
            single.add(at)
        key = group, node.index if per_replica else None
        if key not in known:
            known[key] = len(result.nodes)
            name = grouping.groups[group].name
            kept = node if per_replica else Node("", "")
            result.nodes.append(
                Node(f"group {name!r}", "all", kept.index, kept.symbolic, kept.count)
            )
        number.append(known[key])
    for at, edge in enumerate(graph.edges):
        new = _contract(graph, edge, number, single)
        if new is not None:
            result.edges.append(new)
            result.origin.append(at)
    return result


def _contract(graph: Graph, edge: Edge, number: list[int], single: set[int]) -> Edge | None:
    """``edge`` between groups; None inside one."""
    source, target = number[edge.source], number[edge.target]
    new = Edge(source, target, *edge[2:])
    if edge.source not in single and edge.target not in single:
        return None if source == target and not edge.wide and edge.weight == 0 else new
    symbolic = graph.nodes[edge.target].symbolic and edge.target not in single
    if edge.source in single:
        low = edge.low if edge.wide else max(0, -edge.weight)
        new = new._replace(weight=0, at=None, wide=symbolic, low=low if symbolic else 0)
    elif edge.target in single:
        new = new._replace(weight=0, wide=graph.nodes[edge.source].symbolic, low=0)
    if source == target and not new.wide and new.weight == 0:
        return None
    return new


def check_merges(
    graph: Graph, grouping: Grouping, cyclic: list[list[int]], out: Diagnostics,
    suspects: Callable[[Edge], bool],
) -> None:  # fmt: skip
    """Report the cycles of groups (CF321); ``cyclic`` are the cycles that exist without them."""
    if not grouping.of:
        return
    contracted = quotient(graph, grouping)
    cycles = prove(contracted).cyclic
    if not cycles:
        return
    known = {node for members in cyclic for node in members}
    preimage: dict[int, list[int]] = {}
    for at, edge in zip(contracted.origin, contracted.edges, strict=True):
        preimage.setdefault(edge.source, []).append(graph.edges[at].source)
        preimage.setdefault(edge.target, []).append(graph.edges[at].target)
    for members in cycles:
        if any(node in known for member in members for node in preimage.get(member, ())):
            continue
        cycle = find_cycle(contracted, members)
        out.items.append(_describe(contracted, grouping, cycle, suspects))


def _describe(
    contracted: Graph, grouping: Grouping, cycle: Cycle, suspects: Callable[[Edge], bool]
) -> Diagnostic:
    """The cycle of groups with one real edge each."""
    base = contracted.base
    assert base is not None
    names: list[str] = []
    spans: list[Span] = []
    notes: list[Note] = []
    for place, (number, index) in enumerate(cycle.nodes):
        node = contracted.nodes[number]
        group = node.component.startswith("group ")
        which = node.index if node.index is not None else (index if cycle.counts else None)
        if not group:
            names.append(node.label(index if cycle.counts else None))
        elif which is None:
            names.append(node.component + (" of replica i" if node.symbolic else ""))
        else:
            names.append(f"{node.component} of replica {which}")
        number_base = contracted.origin[cycle.edges[place]]
        edge = base.edges[number_base]
        target_index = cycle.nodes[(place + 1) % len(cycle.nodes)][1]
        shown = []
        for end, at in ((edge.source, index), (edge.target, target_index)):
            text = base.nodes[end].label(at if cycle.counts else None)
            inside = grouping.of.get(end)
            if inside is not None:
                spans.append(grouping.entries[end].span)
                text += f" (group {grouping.groups[inside].name!r})"
            shown.append(text)
        notes.append(edge_note(base, number_base, *shown))
    message = "merged like this, transitions wait for themselves: " + chain_text(names)
    if cycle.counts:
        message += "; first cyclic with " + ", ".join(f"{k} = {v}" for k, v in cycle.counts.items())
    real = [base.edges[contracted.origin[at]] for at in cycle.edges]
    chosen = next((e for e in real if e.ref is not None and suspects(e)), None)
    help_ = "take one of these transitions out of its group, or merge the groups into one"
    if chosen is not None:
        help_ += f"; the chain has the opposite order of `{words(chosen)}`"
    return Diagnostic("CF321", "error", message, spans[0] if spans else None, tuple(notes), help_)


def merged(spec: Spec) -> dict[str, Merged]:
    """What the plan needs of each group; for a spec whose merges have been checked.

    Waits of the members are united; those inside the group are left out, and members
    are in a topological order.
    """
    if not spec.merges:
        return {}
    with calm():
        return _merged(spec)


def _merged(spec: Spec) -> dict[str, Merged]:
    graph = build(spec, exact=False)
    rank = {n: i for i, c in enumerate(reversed(strongly_connected(graph.successors()))) for n in c}
    result: dict[str, Merged] = {}
    for group in spec.merges:
        known = [ref for ref in group.of if spec.state_of(ref) is not None]
        order = {
            id(ref): (rank[graph.ids[ref.component, ref.state][0]],
                      spec.components[ref.component].position(ref.state))
            for ref in known
        }  # fmt: skip
        members = sorted(known, key=lambda ref: order[id(ref)])
        inside = {(ref.component, ref.state): ref for ref in members}
        waits: list[Wait] = []
        before: list[Ref] = []
        for ref in members:
            component = spec.components[ref.component]
            place = component.position(ref.state)
            previous = component.states[place - 1]
            if (component.name, previous.name) not in inside:
                before.append(Ref(component.name, previous.name, ref.index, previous.span))
            waits.extend(
                Wait(ref, dependency)
                for dependency in component.states[place].after
                if not _internal(group, inside, ref, dependency.ref)
            )
        result[group.name] = Merged(
            group.name, is_per_replica(group), tuple(members), tuple(waits), tuple(before)
        )
    return result


def _internal(
    group: MergeGroup, inside: Mapping[tuple[str, str], Ref], member: Ref, wanted: Ref
) -> bool:
    """Whether the wait of ``member`` for ``wanted`` lies inside one group."""
    other = inside.get((wanted.component, wanted.state))
    if other is None:
        return False
    if is_per_replica(group):
        return wanted.index.kind == "offset" and wanted.index.value in (0, None)
    if other.index.kind == "at":
        return wanted.index == other.index
    return True
