"""Does a recorded run follow its spec?

For every dependency ``X after d.s``: end(d.s) <= begin(X).  So a start that raced
ahead is caught even if the publishes happened to come in order (DESIGN section 5).
With ``chain``, the publishes must also follow the stock order (Theorem 2 says what
that order stands for).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass

from cfac.runtime.history import History
from cfac.runtime.plan import Plan
from cfac.runtime.table import label


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a run differs from its spec."""

    kind: str
    message: str


def verify(history: History, *, chain: bool = False) -> list[Finding]:
    """All findings; an empty list means that the run conforms."""
    plan = history.plan
    if plan is None:
        return [Finding("plan", "the run has no plan: nothing to compare it with")]
    findings = [Finding("trace", f"a line is damaged: {place}") for place in history.damaged]
    states = _states(history, plan)
    # The end of an engine that had started is no part of its start.
    final = max((times[0] for times in history.publishes.values()), default=0)
    findings += [
        Finding("failed", f"the run failed: {event['c']} in state {event['s']}: {event['cause']}")
        for event in history.of("failed")
        if states or event["t"] < final
    ]
    findings += states
    findings += _dependencies(history, plan)
    findings += _bounds(history, plan)
    if chain:
        findings += _chain(history, plan)
    return findings


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3f} ms"


def _states(history: History, plan: Plan) -> list[Finding]:
    """Every declared state of every component once, in the component's own order."""
    findings = []
    expected = set()
    fallen_back = {event["c"] for event in history.of("fallback")}
    for component, index in plan.instances():
        who = label(component, index)
        last: tuple[int, str] | None = None
        for state in plan.states(component):
            expected.add((who, state))
            times = history.publishes.get((who, state), [])
            if component in fallen_back:
                times = times[-1:]  # before it, the child that was given up
            if not times and plan.transition(component, state).get("exit"):
                continue  # its process lives
            if not times and not plan.passed(component, state):
                continue
            if len(times) != 1:
                how = "was never published" if not times else f"was published {len(times)} times"
                findings.append(Finding("state", f"{who}.{state} {how}"))
                continue
            if last is not None and times[0] < last[0]:
                ahead = _ms(last[0] - times[0])
                message = f"{who}.{state} was published {ahead} before {who}.{last[1]}"
                findings.append(Finding("order", message))
            last = (times[0], state)
    for who, state in history.publishes:
        if (who, state) not in expected:
            findings.append(Finding("state", f"{who}.{state} was published but is not declared"))
    return findings


def _dependencies(history: History, plan: Plan) -> list[Finding]:
    findings = []
    for component, index in plan.instances():
        who = label(component, index)
        for state in plan.states(component)[1:]:
            needs = plan.needs(f"{component}.{state}", index)
            if not needs or history.end(who, state) is None:
                continue
            begin = history.begin(who, state)
            if begin is None:
                findings.append(Finding("begin", f"{who}.{state} has no recorded begin"))
                continue
            for source, awaited in plan.needs(f"{component}.{state}", index, bounds=False):
                end = history.end(source, awaited)
                rule = f"{who}.{state} after {source}.{awaited}"
                if end is not None and end > begin:
                    message = f"{rule}: it began {_ms(end - begin)} before {source}.{awaited} ended"
                    findings.append(Finding("dependency", message))
    return findings


def _bounds(history: History, plan: Plan) -> list[Finding]:
    """Of the replicas before i, fewer than R had not reached the state when i began."""
    findings = []
    for component in plan.components:
        for state in plan.states(component)[1:]:
            for source, awaited, limit in plan.bounds(f"{component}.{state}"):
                ends: list[int] = []
                for index in plan.indices(component):
                    who = label(component, index)
                    begin = history.begin(who, state)
                    late = 0 if begin is None else len(ends) - bisect_right(ends, begin)
                    if late >= limit:
                        message = (
                            f"{who}.{state} began while {late} before it had not reached "
                            f"{source}.{awaited}: fewer than {limit} may"
                        )
                        findings.append(Finding("bound", message))
                    end = history.end(label(source, index), awaited)
                    if end is not None:
                        insort(ends, end)
    return findings


def _chain(history: History, plan: Plan) -> list[Finding]:
    """Publishes in the order of the chain's ranks."""
    findings = []
    latest: tuple[int, str] | None = None
    for rank in plan.data["chain"]:
        keys = []
        for reference in rank:
            keys += plan.resolve(reference, None, reference["component"])
        ends = [
            (end, f"{who}.{state}")
            for who, state in keys
            if (end := history.end(who, state)) is not None
        ]
        if not ends:
            continue
        first = min(ends)
        if latest is not None and first[0] < latest[0]:
            ahead = _ms(latest[0] - first[0])
            message = f"{first[1]} ended {ahead} before {latest[1]}, which stands before it"
            findings.append(Finding("chain", message))
        latest = max(ends) if latest is None else max(latest, *ends)
    return findings
