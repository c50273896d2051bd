"""The graph on a limited number of cores, in two deterministic simulations.

The list schedule: whenever a core is free it takes the ready transition with the longest
path ahead of it (the first in the spec's order, of equals) and runs it to its end.
Shared: all ready transitions run at once, each with an equal share of the cores and one
core at most, as an operating system lets processes of equal priority run.

Neither leaves a core idle while somebody could use it, so both end within
cpu/N + (1 - 1/N) * longest path (Graham, Bounds on Multiprocessing Timing Anomalies,
1969); and nothing can end before max(cpu/N, longest path).  What needs no core (a sleep,
a disk) takes its time beside the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from cfac.compiler.analyze.paths import Dag, tails


class Limited(NamedTuple):
    """``bound`` no schedule beats; ``end`` is when the list schedule is over (ns)."""

    cores: int
    cpu: int
    bound: int
    end: int
    begins: list[int]


def schedule(dag: Dag, costs: Sequence[int], busy: Sequence[bool], cores: int) -> Limited:
    """List-schedule the graph; ``busy[n]`` says whether node n needs a core."""
    ahead = tails(dag, costs)
    missing = [len(edges) for edges in dag.into]
    begins = [0] * dag.count
    ready: list[tuple[int, int]] = []  # those that need a core: -longest path ahead, node
    running: list[tuple[int, int]] = []  # end, node
    free, now = cores, 0

    def arrive(node: int) -> None:
        if busy[node] and costs[node]:
            heappush(ready, (-ahead[node], node))
        else:
            begins[node] = now
            heappush(running, (now + costs[node], node))

    for node in range(dag.count):
        if not missing[node]:
            arrive(node)
    while ready or running:
        # what ends now, and all that takes no time, before the next is chosen
        while running and running[0][0] == now:
            _, node = heappop(running)
            free += bool(busy[node] and costs[node])
            for edge in dag.out[node]:
                target = dag.targets[edge]
                missing[target] -= 1
                if not missing[target]:
                    arrive(target)
        while free and ready:
            _, node = heappop(ready)
            begins[node] = now
            free -= 1
            heappush(running, (now + costs[node], node))
        if running:
            now = running[0][0]
    cpu = sum(cost for cost, needs in zip(costs, busy, strict=True) if needs)
    bound = max(max(ahead, default=0), -(-cpu // cores))
    return Limited(cores, cpu, bound, now, begins)


def shared(dag: Dag, costs: Sequence[int], busy: Sequence[bool], cores: int) -> int:
    """When all is over if the running transitions share the cores equally (ns, rounded).

    ``work`` is what each running transition has been given since the beginning of all:
    one that needs c more ends when it is c higher.
    """
    missing = [len(edges) for edges in dag.into]
    running: list[tuple[float, int]] = []  # those on a core: work at their end, node
    beside: list[tuple[float, int]] = []  # the others: time at their end, node
    now = work = 0.0
    done = [node for node in range(dag.count) if not missing[node]]
    begun = 0
    while True:
        for node in done[begun:]:  # those that may begin now
            if busy[node] and costs[node]:
                heappush(running, (work + costs[node], node))
            else:
                heappush(beside, (now + costs[node], node))
        begun = len(done)
        if not running and not beside:
            return round(now)
        speed = min(1.0, cores / len(running)) if running else 1.0
        first = now + (running[0][0] - work) / speed if running else float("inf")
        if beside and beside[0][0] <= first:
            until, node = heappop(beside)
            work += (until - now) * speed
        else:
            until = first
            work, node = heappop(running)
        now = max(now, until)
        for edge in dag.out[node]:
            target = dag.targets[edge]
            missing[target] -= 1
            if not missing[target]:
                done.append(target)
