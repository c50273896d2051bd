"""Puts the passes together: one query in, one analysis out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cfac.compiler.analyze import paths
from cfac.compiler.analyze.births import births, declared
from cfac.compiler.analyze.blame import Fall, blames, dependency_falls
from cfac.compiler.analyze.chain import chain_time, classes
from cfac.compiler.analyze.cores import Limited, schedule, shared
from cfac.compiler.analyze.costs import Costs, Source, assign, missing
from cfac.compiler.analyze.network import Network, build
from cfac.compiler.analyze.notes import notes
from cfac.compiler.analyze.recorded import Recorded, RunInfo
from cfac.compiler.analyze.select import Names, SelectionError
from cfac.compiler.draw.build import absent as absent_with
from cfac.compiler.expand import Expanded, expand
from cfac.compiler.model import Scalar, Spec


@dataclass(frozen=True, slots=True)
class Query:
    """What to analyze a spec with; costs in ns.

    ``params`` win over those of the recorded runs, which win over the defaults.
    ``without`` are dependencies, AWAITED:WAITING; ``coreless`` transitions need no core.
    """

    params: Mapping[str, Scalar] = field(default_factory=dict)
    recorded: Recorded | None = None
    settings: tuple[tuple[str, int], ...] = ()
    without: tuple[str, ...] = ()
    cores: int | None = None
    coreless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """Totals in ns; ``chain`` is None where the spec has no chain."""

    predicted: int
    chain: int | None


@dataclass(frozen=True, slots=True)
class OnCores:
    """The same on a limited number of cores: as a list schedule, and shared fairly."""

    limited: Limited
    listed: Times
    shared: Times


@dataclass(frozen=True, slots=True)
class Step:
    """One transition of the critical path; ``why`` is ``first`` or an edge's kind."""

    node: int
    begin: int
    end: int
    why: str
    of: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """One transition (or merged group), all times in ns."""

    name: str
    label: str
    members: tuple[str, ...]
    cost: int
    source: Source
    begin: int
    end: int
    slack: int
    blame: int


@dataclass(slots=True)
class Analysis:
    """The outcome.  ``before`` are the totals without ``--set`` and ``--without``, if given.

    ``declared`` is the longest path of the spec's dependencies alone (the paper's T_CFA),
    None if the engine's own starts of processes add nothing to them.
    """

    name: str
    params: dict[str, Any]
    runs: tuple[RunInfo, ...]
    times: Times
    before: Times | None
    declared: int | None
    on_cores: OnCores | None
    rows: list[Row]
    path: list[Step]
    blame: list[Fall]
    dependencies: list[Fall]
    missing: list[str]
    notes: list[str]


def analyze(spec: Spec, query: Query | None = None) -> Analysis:
    """Analyze a spec that was checked: its graph has to be acyclic.

    SelectionError for names in the query that mean nothing with these parameters.
    """
    query = query or Query()
    params = _params(spec, query)
    counts = {name: value for name, value in params.items() if type(value) is int}
    absent = absent_with(spec, params)
    expanded = expand(spec, counts, absent)
    network, dropped = _network(spec, expanded, counts, absent)
    names = _LazyNames(spec, network, absent)
    costs = _costs(spec, query, network, names)
    without = {edge for text in query.without for edge in names().dependency(text)}
    order = classes(spec, expanded, counts) if spec.chain else None
    before = None
    if query.settings or query.without:
        declared = assign(spec, expanded, query.recorded, {})
        before = _times(network.dag, declared.of_nodes(network), order, declared)
    if without:
        network = network.without(without)
    node_costs = costs.of_nodes(network)
    ends = paths.ends(network.dag, node_costs)
    tails = paths.tails(network.dag, node_costs)
    falls = paths.falls(network.dag, node_costs, ends, tails)
    path = paths.critical_path(network.dag, ends, node_costs, network.of_kind("own"))
    starts = network.of_kind("start")
    total = max(ends, default=0)
    times = Times(total, None if order is None else chain_time(order, costs.stock))
    return Analysis(
        name=spec.name,
        params=_shown(spec, params),
        runs=query.recorded.runs if query.recorded else (),
        times=times,
        before=before,
        declared=max(paths.ends(network.dag, node_costs, starts)) if starts else None,
        on_cores=_on_cores(query, network, names, node_costs, costs, order),
        rows=[
            Row(
                name=network.names[node],
                label=network.labels[node],
                members=tuple(expanded.names[n] for n in network.members[node]),
                cost=node_costs[node],
                source=costs.source(network, node),
                begin=ends[node] - node_costs[node],
                end=ends[node],
                slack=total - (ends[node] - node_costs[node]) - tails[node],
                blame=falls.nodes[node],
            )
            for node in range(len(network.names))
        ],
        path=[_step(network, node, edge, node_costs, ends) for node, edge in path],
        blame=blames(network, node_costs, path, falls, total),
        dependencies=dependency_falls(network, node_costs, path, falls, total),
        missing=_missing(network, costs),
        notes=notes(spec, absent, query.recorded, dropped),
    )


def _network(
    spec: Spec, expanded: Expanded, counts: Mapping[str, int], absent: Collection[str]
) -> tuple[Network, bool]:
    """The network; and whether the engine's starts had to be left out of it.

    They follow the chain, which orders marked ``schedule: true`` may contradict.
    """
    links, more = declared(expanded), births(spec, expanded, counts, absent)
    network = build(spec, expanded, links + more)
    if len(network.dag.order) == network.dag.count:
        return network, False
    more = [link for link in more if link.kind != "start"]
    return build(spec, expanded, links + more), True


class _LazyNames:
    """The index of names, made when the first one is looked up."""

    def __init__(self, spec: Spec, network: Network, absent: Collection[str]) -> None:
        self._what = spec, network, absent
        self._made: Names | None = None

    def __call__(self) -> Names:
        if self._made is None:
            self._made = Names(*self._what)
        return self._made


def _params(spec: Spec, query: Query) -> dict[str, Scalar]:
    values = {name: param.default for name, param in spec.params.items()} | dict(spec.counts)
    recorded = query.recorded.params if query.recorded else {}
    values.update({name: recorded[name] for name in values if name in recorded})
    values.update(query.params)
    for component in spec.components.values():
        count = values.get(component.replicas) if isinstance(component.replicas, str) else 1
        if type(count) is int and count < 0:
            raise SelectionError(f"{component.replicas} is {count}: a count is 0 or more")
    return values


def _shown(spec: Spec, params: Mapping[str, Scalar]) -> dict[str, Any]:
    """The parameters that the graph depends on."""
    used: set[str] = set()
    for component in spec.components.values():
        if isinstance(component.replicas, str):
            used.add(component.replicas)
        for test in component.when.tests if component.when else ():
            used.add(test.subject.removeprefix("param:"))
    return {name: value for name, value in params.items() if name in used}


def _costs(spec: Spec, query: Query, network: Network, names: _LazyNames) -> Costs:
    settings: dict[int, int] = {}
    groups: dict[int, int] = {}
    for text, cost in query.settings:
        selected = names().select(text)
        settings.update(dict.fromkeys(selected.transitions, cost))
        groups.update(dict.fromkeys(selected.groups, cost))
    costs = assign(spec, network.expanded, query.recorded, settings)
    costs.groups.update(groups)
    return costs


def _times(
    dag: paths.Dag, node_costs: list[int], order: list[list[list[int]]] | None, costs: Costs
) -> Times:
    total = max(paths.ends(dag, node_costs), default=0)
    return Times(total, None if order is None else chain_time(order, costs.stock))


def _on_cores(
    query: Query,
    network: Network,
    names: _LazyNames,
    node_costs: list[int],
    costs: Costs,
    order: list[list[list[int]]] | None,
) -> OnCores | None:
    if query.cores is None:
        return None
    busy = [True] * len(network.expanded.transitions)
    for text in query.coreless:
        selected = names().select(text)
        for node in selected.transitions:
            busy[node] = False
        for group in selected.groups:
            for node in network.members[group]:
                busy[node] = False
    node_busy = [any(busy[n] for n in members) for members in network.members]
    cores = query.cores
    limited = schedule(network.dag, node_costs, node_busy, cores)
    together = shared(network.dag, node_costs, node_busy, cores)
    if order is None:
        return OnCores(limited, Times(limited.end, None), Times(together, None))
    listed = chain_time(order, costs.stock, busy, lambda d, c, b: schedule(d, c, b, cores).end)
    chained = chain_time(order, costs.stock, busy, lambda d, c, b: shared(d, c, b, cores))
    return OnCores(limited, Times(limited.end, listed), Times(together, chained))


def _step(network: Network, node: int, edge: int | None, costs: list[int], ends: list[int]) -> Step:
    begin, end = ends[node] - costs[node], ends[node]
    if edge is None:
        return Step(node, begin, end, "first", None)
    source = network.names[network.dag.sources[edge]]
    return Step(node, begin, end, network.link(edge).kind, source)


def _missing(network: Network, costs: Costs) -> list[str]:
    """The transitions without a cost, but those of groups that have one."""
    covered = {n for node in costs.groups for n in network.members[node]}
    return missing(network.expanded, costs, covered)
