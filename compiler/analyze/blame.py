"""What is to blame: how much sooner all would be over without a cost, or without a wait.

Transitions and dependencies are taken as the spec writes them, all replicas at once: with
eight equal workers no single one is to blame, but `worker.*.Ready` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cfac.compiler.analyze import paths
from cfac.compiler.analyze.network import Network, label
from cfac.compiler.analyze.paths import Falls

#: Nodes visited, at most, by recomputing totals one by one (some seconds).
_BUDGET = 10_000_000


@dataclass(frozen=True, slots=True)
class Fall:
    """``fall`` in ns; None if it was not computed (too many replicas on a long path).

    ``kind`` and ``of`` (the awaited reference) are those of a dependency.
    """

    name: str
    fall: int | None
    kind: str = "transition"
    of: str = ""


def blames(
    network: Network,
    costs: Sequence[int],
    path: Sequence[tuple[int, int | None]],
    falls: Falls,
    total: int,
) -> list[Fall]:
    """For each transition with a cost on the critical path, most to blame first.

    No other can be to blame: taking its cost away leaves the critical path as it is.
    """
    shares: dict[str, int] = {}
    for node, _ in path:
        if costs[node]:
            shares[network.labels[node]] = shares.get(network.labels[node], 0) + costs[node]
    replicas: dict[str, list[int]] = {name: [] for name in shares}
    for node, name in enumerate(network.labels):
        if name in replicas:
            replicas[name].append(node)
    budget = _BUDGET // max(1, network.dag.count)
    found = []
    for name in sorted(shares, key=lambda n: (-shares[n], n)):
        nodes = replicas[name]
        fall: int | None = None
        if len(nodes) == 1:
            fall = falls.nodes[nodes[0]]
        elif budget > 0:
            budget -= 1
            changed = list(costs)
            for node in nodes:
                changed[node] = 0
            fall = total - max(paths.ends(network.dag, changed))
        found.append(Fall(name, fall))
    return sorted(found, key=_worst)


def dependency_falls(
    network: Network,
    costs: Sequence[int],
    path: Sequence[tuple[int, int | None]],
    falls: Falls,
    total: int,
) -> list[Fall]:
    """For each dependency, as written; those that are not on the critical path fall by 0."""
    edges: dict[tuple[str, str, str], list[int]] = {}
    keys: dict[int, tuple[str, str, str]] = {}
    for number in range(len(network.origin)):
        link = network.link(number)
        if link.kind != "own":
            waiting = label(network.expanded.transitions[link.target])
            keys[number] = waiting, link.kind, link.of
            edges.setdefault(keys[number], []).append(number)
    on_path = dict.fromkeys(keys[edge] for _, edge in path if edge is not None and edge in keys)
    changed: dict[tuple[str, str, str], int | None] = dict.fromkeys(edges, 0)
    budget = _BUDGET // max(1, network.dag.count)
    for key in on_path:
        numbers = edges[key]
        if len(numbers) == 1:
            changed[key] = falls.edges[numbers[0]]
        elif budget > 0:
            budget -= 1
            changed[key] = total - max(paths.ends(network.dag, costs, set(numbers)))
        else:
            changed[key] = None
    return sorted((Fall(k[0], fall, k[1], k[2]) for k, fall in changed.items()), key=_worst)


def _worst(fall: Fall) -> tuple[float, str, str, str]:
    return (-fall.fall if fall.fall is not None else 0.5, fall.name, fall.kind, fall.of)
