"""What recorded runs tell of costs: how long each transition took, begin to publish.

Of several runs the median counts, transition by transition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from cfac.compiler.draw.timeline import one_line
from cfac.compiler.expand import Transition
from cfac.runtime.errors import ChannelError
from cfac.runtime.history import History
from cfac.runtime.plan import Plan
from cfac.runtime.table import label


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run: ``total`` is from the root's first state to the last state (ns)."""

    id: str
    plan: str
    observe: bool
    total: int
    missing: tuple[str, ...]
    #: components whose process this run forked or started early
    early: frozenset[str]
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Medians:
    """Medians over the runs, of each replica; and over the replicas, for those not there."""

    replicas: Mapping[Transition, int]
    transitions: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, samples: Mapping[Transition, list[int]]) -> _Medians:
        replicas = {key: int(median(found)) for key, found in samples.items()}
        shared: dict[tuple[str, str], list[int]] = {}
        for key, value in replicas.items():
            shared.setdefault((key.component, key.state), []).append(value)
        return cls(replicas, {key: int(median(found)) for key, found in shared.items()})

    def get(self, transition: Transition) -> int | None:
        found = self.replicas.get(transition)
        if found is None:
            found = self.transitions.get((transition.component, transition.state))
        return found


@dataclass(frozen=True, slots=True)
class Recorded:
    """What some runs tell, in ns."""

    runs: tuple[RunInfo, ...]
    costs: _Medians
    leads: _Medians

    @property
    def params(self) -> Mapping[str, Any]:
        """The first run's parameters."""
        return self.runs[0].params if self.runs else {}

    def cost(self, transition: Transition) -> int | None:
        """From a transition's begin to its publish; that of the other replicas if need be."""
        return self.costs.get(transition)

    def lead(self, transition: Transition) -> int | None:
        """How long a transition with a begin of its own could have begun, and did not.

        That is since its component's state before and all that it waits for: work that is
        in no transition's cost, as what a process imports before it gets to its begin.
        """
        return self.leads.get(transition)


def record(histories: Iterable[History]) -> Recorded:
    """Read the costs out of runs.  ChannelError for a run without a plan."""
    runs: list[RunInfo] = []
    samples: dict[Transition, list[int]] = {}
    before: dict[Transition, list[int]] = {}
    for history in histories:
        plan = _plan(history)
        runs.append(_info(history, plan))
        for transition, cost, lead in _durations(history, plan):
            samples.setdefault(transition, []).append(cost)
            if lead is not None:
                before.setdefault(transition, []).append(lead)
    return Recorded(tuple(runs), _Medians.of(samples), _Medians.of(before))


def total(history: History) -> int:
    """From the root's first state to the last state, in ns; 0 if nothing was published.

    States that are a process's end do not count: they may come hours later.
    """
    plan = _plan(history)
    roots = {label(c, i) for c, i in plan.instances() if c in plan.roots()}
    starts = [t[0] for (who, _), t in history.publishes.items() if who in roots]
    last = [
        times[-1]
        for (who, state), times in history.publishes.items()
        if not _at_exit(plan, who.partition("[")[0], state)
    ]
    return max(last) - min(starts) if starts and last else 0


def _plan(history: History) -> Plan:
    if history.plan is None:
        raise ChannelError("the run has no plan: nothing tells its transitions")
    return history.plan


def _at_exit(plan: Plan, component: str, state: str) -> bool:
    return component in plan.components and plan.at_exit(component, state)


def _info(history: History, plan: Plan) -> RunInfo:
    missing = [
        f"{label(component, index)}.{state}"
        for component, index in plan.instances()
        for state in plan.states(component)
        if (label(component, index), state) not in history.publishes
        and plan.passed(component, state)
        and not _at_exit(plan, component, state)
    ]
    observe = bool(history.info.get("observe"))
    fallen = {event["c"] for event in history.of("fallback")}
    early = {
        name
        for name, entry in plan.components.items()
        if (entry["process"] or {}).get("strategy", "engine") != "engine" and name not in fallen
    }
    return RunInfo(
        id=one_line(history.info["id"]),
        plan=plan.name,
        observe=observe,
        total=total(history),
        missing=tuple(missing),
        early=frozenset() if observe else frozenset(early),
        params=dict(plan.params),
    )


def _durations(history: History, plan: Plan) -> Iterator[tuple[Transition, int, int | None]]:
    """Each transition's cost and lead; what has no recorded begin or end is left out."""
    fallen = {event["c"] for event in history.of("fallback")}
    merged = dict(_merged(history, plan))
    for component, index in plan.instances():
        who = label(component, index)
        hollow = bool(history.info.get("observe")) or component in fallen
        # of a child that was given up only the engine's own start counts
        at = -1 if component in fallen else 0
        before: int | None = None
        handover = _handover(history, plan, component, index)
        for number, state in enumerate(plan.states(component)):
            ends = history.publishes.get((who, state))
            if _at_exit(plan, component, state):
                continue
            entry = plan.transition(component, state)
            if hollow and (entry.get("imports") or entry.get("device")):
                continue  # published, but its work was not done there
            end = ends[at] if ends else None
            transition = Transition(component, index, state)
            begins = history.begins.get((who, state))
            if transition in merged:
                yield transition, merged[transition], None
            elif number and end is not None and begins:
                lead = _lead([before, *_awaited(history, plan, transition)], begins[at])
                yield transition, max(0, end - begins[at]), lead
            elif number and end is not None and before is not None and not entry.get("after"):
                # what is there early waits until the engine comes to start it
                ready = max(before, handover[1]) if state == handover[0] else before
                yield transition, max(0, end - ready), None
            before = end


def _handover(
    history: History, plan: Plan, component: str, index: int | None
) -> tuple[str | None, int]:
    """The first state that a child does not reach at its birth; and from when it could.

    That is when the spawning process was in its last state that the chain has before it
    (as in `cfac.compiler.analyze.births`); 0 where nothing is known of that.
    """
    states = plan.states(component)[1:]
    later = states[len(plan.births(component)) :]
    spawner = (plan.components[component]["process"] or {}).get("spawned_by")
    aux = plan.components[component]["aux"]
    stock = next((state for state in states if state not in aux), None)
    if not later or stock is None or spawner not in plan.components:
        return None, 0
    classes = {
        (ref["component"], ref["state"]): number
        for number, members in enumerate(plan.data["chain"])
        for ref in members
    }
    known = classes.get((component, stock), 0)
    before = [s for s in plan.states(spawner)[1:] if classes.get((spawner, s), known) < known]
    at = None if plan.components[spawner]["replicas"] is None else index
    time = history.end(label(spawner, at), before[-1]) if before else None
    return later[0], time or 0


def _lead(ready: list[int | None], begin: int) -> int | None:
    """From when all was ready to the begin; None where something was never published."""
    known = [time for time in ready if time is not None]
    return max(0, begin - max(known)) if len(known) == len(ready) else None


def _awaited(history: History, plan: Plan, transition: Transition) -> Iterator[int | None]:
    """When what a transition waits for was published."""
    name = f"{transition.component}.{transition.state}"
    for need in plan.needs(name, transition.index):
        yield history.end(*need)


def _merged(history: History, plan: Plan) -> Iterator[tuple[Transition, int]]:
    """Members of groups that the run really merged (``cfac run`` does, an engine does not).

    All members begin and end together: the first one is given all of it.
    """
    if plan.data["engine"] is not None or not plan.data["groups"]:
        return
    from cfac.runtime.executor import schedule

    for work in (work for works in schedule(plan).values() for work in works):
        if len(work.members) < 2:
            continue
        begins = [history.begin(*member.key) for member in work.members]
        ends = [history.end(*member.key) for member in work.members]
        known = [t for t in begins if t is not None], [t for t in ends if t is not None]
        if not all(known):
            continue
        cost = max(0, max(known[1]) - min(known[0]))
        for member in work.members:
            yield Transition(member.component, member.index, member.state), cost
            cost = 0
