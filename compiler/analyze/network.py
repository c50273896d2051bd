"""The graph to compute on: one node per transition of each replica, or per merged group."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from cfac.compiler.analyze.births import Link
from cfac.compiler.analyze.paths import Dag
from cfac.compiler.expand import Expanded, Transition
from cfac.compiler.merge import is_per_replica
from cfac.compiler.model import MergeGroup, Spec


@dataclass(slots=True)
class Network:
    """``members[n]`` are the expanded graph's transitions that node n stands for.

    ``names`` are unique; ``labels`` are shared by the replicas of a transition.
    ``origin[e]`` is the number in ``links`` of what is behind edge e of ``dag``.
    """

    expanded: Expanded
    links: list[Link]
    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    members: list[list[int]] = field(default_factory=list)
    groups: dict[int, MergeGroup] = field(default_factory=dict)
    origin: list[int] = field(default_factory=list)
    dag: Dag = field(default_factory=lambda: Dag(0, [], []))

    def link(self, edge: int) -> Link:
        """What is behind an edge of ``dag``."""
        return self.links[self.origin[edge]]

    def of_kind(self, kind: str) -> set[int]:
        """The edges of one kind."""
        return {e for e, link in enumerate(self.origin) if self.links[link].kind == kind}

    def without(self, edges: Collection[int]) -> Network:
        """The same network without some edges."""
        kept = [e for e in range(len(self.origin)) if e not in edges]
        sources, targets = self.dag.sources, self.dag.targets
        return replace(
            self,
            origin=[self.origin[e] for e in kept],
            dag=Dag(self.dag.count, [sources[e] for e in kept], [targets[e] for e in kept]),
        )


def label(transition: Transition) -> str:
    """The name that all replicas share: ``worker.*.Ready``."""
    star = "" if transition.index is None else ".*"
    return f"{transition.component}{star}.{transition.state}"


def build(spec: Spec, expanded: Expanded, links: list[Link]) -> Network:
    """Contract the merge groups (paper sections 3.1 and 4.2), each to one node."""
    network = Network(expanded, links)
    where: list[int] = []
    known: dict[tuple[str, int | None], int] = {}
    group_of = _groups(spec)
    for node, transition in enumerate(expanded.transitions):
        group = group_of.get((transition.component, transition.index, transition.state))
        group = group or group_of.get((transition.component, None, transition.state))
        if group is None:
            where.append(len(network.names))
            _add(network, expanded.names[node], label(transition), node)
            continue
        each = is_per_replica(group)
        key = group.name, transition.index if each else None
        if key not in known:
            known[key] = len(network.names)
            at = "" if key[1] is None else f"[{key[1]}]"
            network.groups[len(network.names)] = group
            star = "[*]" if each else ""
            _add(network, f"group {group.name}{at}", f"group {group.name}{star}", node)
        else:
            network.members[known[key]].append(node)
        where.append(known[key])
    sources, targets = [], []
    for number, link in enumerate(links):
        source, target = where[link.source], where[link.target]
        if source != target:
            sources.append(source)
            targets.append(target)
            network.origin.append(number)
    network.dag = Dag(len(network.names), sources, targets)
    return network


def _add(network: Network, name: str, shared: str, node: int) -> None:
    network.names.append(name)
    network.labels.append(shared)
    network.members.append([node])


def _groups(spec: Spec) -> dict[tuple[str, int | None, str], MergeGroup]:
    """(component, index, state) -> group; None as the index: whichever replica."""
    found: dict[tuple[str, int | None, str], MergeGroup] = {}
    for group in spec.merges:
        for ref in group.of:
            at = ref.index.value if ref.index.kind == "at" else None
            found[ref.component, at if isinstance(at, int) else None, ref.state] = group
    return found
