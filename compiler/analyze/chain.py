"""The stock engine's time: the sum over the chain's classes (paper section 4.1, T_vLLM).

The chain is a weak order (`cfac.compiler.chain`): its classes come one after the other.
Within a class the components are concurrent, and each goes through its own states in
order; so a class takes as long as the component whose states in it take longest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cfac.compiler.analyze.paths import Dag
from cfac.compiler.expand import Expanded, Transition, count_of
from cfac.compiler.model import Ref, Spec


def classes(spec: Spec, expanded: Expanded, counts: Mapping[str, int]) -> list[list[list[int]]]:
    """For each class: for each component replica in it, its transitions in its own order."""
    found = []
    for members in spec.chain:
        replicas: dict[tuple[str, int | None], list[int]] = {}
        for ref in members:
            for place in _places(spec, ref, counts):
                node = expanded.ids.get(Transition(ref.component, place, ref.state))
                if node is not None:
                    replicas.setdefault((ref.component, place), []).append(node)
        for (name, _), nodes in replicas.items():
            places = {state.name: at for at, state in enumerate(spec.components[name].states)}
            if len(nodes) > 1:
                by_place = {places[expanded.transitions[node].state]: node for node in nodes}
                nodes[:] = [node for _, node in sorted(by_place.items())]
        found.append(list(replicas.values()))
    return found


def _places(spec: Spec, ref: Ref, counts: Mapping[str, int]) -> list[int | None]:
    count = count_of(spec, spec.components[ref.component], counts)
    if count is None:
        return [None]
    if ref.index.kind == "at" and isinstance(ref.index.value, int):
        return [ref.index.value]
    return list(range(count))


#: A simulation of a graph on some cores: its end.
Simulation = Callable[[Dag, list[int], list[bool]], int]


def chain_time(
    order: Sequence[Sequence[Sequence[int]]],
    costs: Sequence[int],
    busy: Sequence[bool] = (),
    simulate: Simulation | None = None,
) -> int:
    """The sum over the classes, in ns; with ``simulate`` each class runs on limited cores."""
    total = 0
    for members in order:
        if simulate is None:
            total += max((sum(costs[n] for n in nodes) for nodes in members), default=0)
            continue
        nodes = [node for replica in members for node in replica]
        sources, targets, at = [], [], 0
        for replica in members:
            for step in range(at, at + len(replica) - 1):
                sources.append(step)
                targets.append(step + 1)
            at += len(replica)
        dag = Dag(len(nodes), sources, targets)
        total += simulate(dag, [costs[n] for n in nodes], [busy[n] for n in nodes])
    return total
