"""Graph algorithms on integer adjacency lists: no recursion, linear where it matters.

networkx needs seconds to build a graph of 100k transitions and its ``find_cycle``
is superlinear on acyclic input, so the checks of paper section 3.3 run on plain lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

Adjacency = Sequence[Sequence[int]]


def strongly_connected(successors: Adjacency) -> list[list[int]]:
    """Tarjan's strongly connected components, iteratively, successors before predecessors."""
    size = len(successors)
    index = [-1] * size
    low = [0] * size
    on_stack = bytearray(size)
    stack: list[int] = []
    found: list[list[int]] = []
    counter = 0
    for root in range(size):
        if index[root] >= 0:
            continue
        work = [root]
        position = [0]
        index[root] = low[root] = counter
        counter += 1
        stack.append(root)
        on_stack[root] = 1
        while work:
            node = work[-1]
            following = successors[node]
            at = position[-1]
            if at < len(following):
                position[-1] = at + 1
                target = following[at]
                if index[target] < 0:
                    index[target] = low[target] = counter
                    counter += 1
                    stack.append(target)
                    on_stack[target] = 1
                    work.append(target)
                    position.append(0)
                elif on_stack[target] and index[target] < low[node]:
                    low[node] = index[target]
                continue
            work.pop()
            position.pop()
            if work and low[node] < low[work[-1]]:
                low[work[-1]] = low[node]
            if low[node] == index[node]:
                members = []
                while True:
                    member = stack.pop()
                    on_stack[member] = 0
                    members.append(member)
                    if member == node:
                        break
                found.append(members)
    return found


def cyclic_components(successors: Adjacency) -> list[list[int]]:
    """The strongly connected components that contain a cycle, each sorted, by first member."""
    result = [
        sorted(members)
        for members in strongly_connected(successors)
        if len(members) > 1 or members[0] in successors[members[0]]
    ]
    return sorted(result)


def topological_order(
    successors: Adjacency, together: Sequence[int] | None = None
) -> list[int] | None:
    """A topological order, or None if the graph is cyclic.

    First come, first served, from the lowest number; but as long as there are nodes
    with the same value of ``together`` as the last one, those come first.
    """
    waiting = [0] * len(successors)
    for following in successors:
        for target in following:
            waiting[target] += 1
    key = together if together is not None else [0] * len(successors)
    queue: deque[int] = deque()  # keys, in order of arrival; the first is being served
    ready: dict[int, deque[int]] = {}

    def arrive(node: int) -> None:
        if not ready.get(key[node]):
            queue.append(key[node])
            ready[key[node]] = deque()
        ready[key[node]].append(node)

    for node, count in enumerate(waiting):
        if not count:
            arrive(node)
    order: list[int] = []
    while queue:
        bucket = ready[queue[0]]
        node = bucket[0]
        order.append(node)
        for target in successors[node]:
            waiting[target] -= 1
            if not waiting[target]:
                arrive(target)
        bucket.popleft()
        if not bucket:
            queue.popleft()
    return order if len(order) == len(successors) else None


def shortest_cycle(
    successors: Adjacency, nodes: Iterable[int], work_limit: int = 10_000_000
) -> list[int]:
    """The shortest cycle inside ``nodes``, starting at its lowest node; [] if there is none.

    A breadth-first search from each node.  Where that would cost more than
    ``work_limit`` steps, the best cycle found by then is returned: still a cycle.
    """
    members = sorted(nodes)
    inside = set(members)
    best: list[int] = []
    work = 0
    for start in members:
        parent = {start: -1}
        layer = [start]
        depth = 0
        closing = -1
        while layer and closing < 0 and (not best or depth + 1 < len(best)):
            following: list[int] = []
            for node in layer:
                work += 1 + len(successors[node])
                for target in successors[node]:
                    if target == start:
                        closing = node
                        break
                    if target in inside and target not in parent:
                        parent[target] = node
                        following.append(target)
                if closing >= 0:
                    break
            layer = following
            depth += 1
        if closing >= 0:
            path = [closing]
            while path[-1] != start:
                path.append(parent[path[-1]])
            best = path[::-1]
            if len(best) == 1:
                break
        if best and work > work_limit:
            break
    if not best:
        return []
    first = best.index(min(best))
    return best[first:] + best[:first]


def potentials(size: int, edges: Sequence[tuple[int, int, int]]) -> list[int] | None:
    """Positions P with ``P[t] + d * (size + 1) > P[s]`` for each edge (s, t, d).

    They exist iff every cycle has a strictly positive sum of ``d`` (None otherwise):
    Bellman-Ford on the scaled weights ``d * (size + 1) - 1``, under which exactly the
    cycles of sum <= 0 are negative.  ``index * (size + 1) + P[node]`` then orders the
    replicas of all nodes (the witness of Theorem 1, paper section 3.3).
    """
    if all(d >= 0 for _, _, d in edges):
        return _ranks(size, edges)
    scale = size + 1
    scaled = [(s, t, d * scale - 1) for s, t, d in edges]
    distance = [0] * size
    for _ in range(size + 1):
        changed = False
        for source, target, weight in scaled:
            if distance[source] + weight < distance[target]:
                distance[target] = distance[source] + weight
                changed = True
        if not changed:
            return [-value for value in distance]
    return None


def _ranks(size: int, edges: Sequence[tuple[int, int, int]]) -> list[int] | None:
    """The linear case of `potentials`: no negative weight, so only zero cycles are bad."""
    zero: list[list[int]] = [[] for _ in range(size)]
    for source, target, d in edges:
        if d == 0:
            zero[source].append(target)
    order = topological_order(zero)
    if order is None:
        return None
    rank = [0] * size
    for place, node in enumerate(order):
        rank[node] = place
    return rank
