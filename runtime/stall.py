"""The stall report: who waits for whom, since when, and whether it can ever end."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping

from cfac.runtime.errors import ChannelError
from cfac.runtime.plan import Plan, split_label
from cfac.runtime.table import Key, StateTable, Waiter, name_key

#: A report has this many lines at most.
MAX_LINES = 60
#: Nothing sleeps longer at once (seconds); select(2) and locks refuse very long times.
LONGEST_PAUSE = 3600.0


def _stall_time() -> float:
    """``CFAC_STALL`` in seconds; 30 if it is unset or no time."""
    try:
        seconds = float(os.environ.get("CFAC_STALL", "30"))
    except ValueError:
        return 30.0
    return 30.0 if math.isnan(seconds) else max(0.0, seconds)


class StallClock:
    """When which waiter is due for a report: after ``after`` seconds, then ever later."""

    def __init__(self, after: float | None = None) -> None:
        self.after = _stall_time() if after is None else after
        self._reported: dict[Waiter, float] = {}

    def due(self, waiter: Waiter) -> float:
        """The monotonic time of the waiter's next report."""
        reported = self._reported.get(waiter)
        if reported is None:
            return waiter.since + self.after
        return reported + max(60.0, 2 * self.after)

    def take_due(self, waiters: list[Waiter]) -> list[Waiter]:
        """The waiters whose report is due now; marks them as reported."""
        now = time.monotonic()
        known = set(waiters)
        self._reported = {w: t for w, t in self._reported.items() if w in known}
        late = [waiter for waiter in waiters if self.due(waiter) <= now]
        self._reported.update(dict.fromkeys(late, now))
        return late


def describe_stall(
    waiter: Waiter, table: StateTable, plan: Plan | None, pids: Mapping[str, int]
) -> str:
    """A few lines that follow a waiter's missing states to where progress stopped.

    ``pids`` maps component labels to process ids.  Never raises.
    """
    lines: list[str] = []
    if not waiter.needs and not waiter.missing:
        return f"  {waiter.who} waits for a parameter that is not known yet"
    trail = [waiter.who]
    for key in sorted(waiter.missing):
        _follow(key, waiter.who, table, plan, pids, lines, trail)
    return "\n".join(lines)


def _follow(
    key: Key,
    who: str,
    table: StateTable,
    plan: Plan | None,
    pids: Mapping[str, int],
    lines: list[str],
    trail: list[str],
) -> None:
    if len(lines) >= MAX_LINES:
        return
    component, state = key
    indent = "  " * len(trail)
    if name_key(key) in trail:
        lines.append(f"{indent}{who} waits for {name_key(key)}: a cycle, this cannot end")
        return
    current = table.current.get(component)
    if current is None:
        where = f"{component} has not appeared"
    else:
        since = time.monotonic() - table.published_at[(component, current)]
        pid = f", process {pids[component]}" if component in pids else ""
        where = f"{component} is in {current} since {since:.0f} s{pid}"
    lines.append(f"{indent}{who} waits for {name_key(key)}: {where}")
    for needed_by, missing in _missing(component, current, state, table, plan):
        _follow(missing, needed_by, table, plan, pids, lines, [*trail, name_key(key), needed_by])


def _missing(
    component: str, current: str | None, target: str, table: StateTable, plan: Plan | None
) -> list[tuple[str, Key]]:
    """What stands between a component's current state and the awaited one."""
    if plan is None:
        return []
    name, index = split_label(component)
    if name not in plan.components:
        return []
    states = plan.states(name)
    if target not in states or (current is not None and current not in states):
        return []
    first = 0 if current is None else states.index(current) + 1
    found: list[tuple[str, Key]] = []
    for state in states[max(1, first) : states.index(target) + 1]:
        try:
            needs = plan.needs(f"{name}.{state}", index)
        except ChannelError:
            continue
        missing = [need for need in needs if need not in table.values]
        found += [(f"{component}.{state}", need) for need in missing]
        if missing:
            break
    return found
