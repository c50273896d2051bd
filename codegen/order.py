"""The order of insertions at one point.

What comes before another transition, by its component's order or by waits, goes before it:
nobody waits there for what is published only below, and no component skips a state.  Where
nothing orders two transitions, one that is only published goes before one that waits or
begins there, then the specs' order counts.  Of one transition: wait, begin, publish.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cfac.codegen.edit import Insert
from cfac.compiler.model import Spec


def arrange(spec: Spec, inserts: Sequence[Insert]) -> list[Insert]:
    """The inserts of one file with ``order`` set to their place at their point."""
    points: dict[tuple[int, int], list[Insert]] = defaultdict(list)
    for insert in inserts:
        points[insert.point.line, insert.point.depth].append(insert)
    before = _before(spec) if any(len(at) > 1 for at in points.values()) else {}
    found: list[Insert] = []
    for at in points.values():
        place = {name: k for k, name in enumerate(_sorted(at, before))}
        found += [replace(insert, order=place[transition(insert)]) for insert in at]
    return found


def transition(insert: Insert) -> str:
    """The transition (of a process's site, the component) that an insert's marker names."""
    return insert.marker.partition(":")[2].rpartition(":")[0] or insert.marker


def _sorted(inserts: Sequence[Insert], before: Mapping[str, frozenset[str]]) -> list[str]:
    keys: dict[str, tuple[int, int, str]] = {}
    for insert in inserts:
        name = transition(insert)
        group = {"import": -1, "use": -1, "publish": 0, "stop": 2}.get(insert.kind, 1)
        known = keys.get(name, (group, insert.order, name))
        keys[name] = (max(group, known[0]), min(insert.order, known[1]), name)
    left: dict[str, frozenset[str]] = {
        name: _ancestors(name, before) & keys.keys() - {name} for name in keys
    }
    for name, above in left.items():  # in a ring of replicas each comes before the other
        left[name] = frozenset(other for other in above if name not in left[other])
    ready = [keys[name] for name, above in left.items() if not above]
    heapq.heapify(ready)
    found: list[str] = []
    waiting: dict[str, set[str]] = {name: set(above) for name, above in left.items() if above}
    while ready:
        name = heapq.heappop(ready)[2]
        found.append(name)
        for other in list(waiting):
            waiting[other].discard(name)
            if not waiting[other]:
                del waiting[other]
                heapq.heappush(ready, keys[other])
    return [*found, *sorted(waiting, key=lambda name: keys[name])]


def _before(spec: Spec) -> dict[str, frozenset[str]]:
    """Transition -> what it comes directly after, replicas aside."""
    found: dict[str, frozenset[str]] = {}
    for component in spec.components.values():
        last: list[str] = []
        for state in component.states:
            waits: Iterable[str] = (
                f"{dependency.ref.component}.{dependency.ref.state}"
                for dependency, _ in component.waits(state)
            )
            name = f"{component.name}.{state.name}"
            found[name] = frozenset([*last, *waits])
            last = [name]
    return found


def _ancestors(name: str, before: Mapping[str, frozenset[str]]) -> frozenset[str]:
    found: set[str] = set()
    pending = [name]
    while pending:
        for other in before.get(pending.pop(), ()):
            if other not in found:
                found.add(other)
                pending.append(other)
    return frozenset(found)
