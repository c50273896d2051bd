"""Reading a run's trace back: events in order, the plan, the parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cfac.runtime.errors import ChannelError
from cfac.runtime.plan import Plan
from cfac.runtime.run import runs_folder
from cfac.runtime.table import label

#: component label, state
Instance = tuple[str, str]
_STATE_EVENTS = ("begin", "wait", "publish")


@dataclass(slots=True)
class History:
    """One recorded run.

    ``begins`` and ``publishes`` map (component label, state) to the time stamps of
    those events in ns, in the order of time; a well-behaved run has one each.  What a child
    said that was given up before the engine asked for it is in ``events`` only.
    """

    folder: Path
    info: dict[str, Any]
    plan: Plan | None
    events: list[dict[str, Any]]
    begins: dict[Instance, list[int]] = field(default_factory=dict)
    waits: dict[Instance, list[int]] = field(default_factory=dict)
    publishes: dict[Instance, list[int]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    def of(self, kind: str) -> Iterator[dict[str, Any]]:
        """The events of one kind, in the order of time."""
        return (event for event in self.events if event["e"] == kind)

    def begin(self, component: str, state: str) -> int | None:
        """When a transition began: its begin event, else the component's publish before."""
        found = self.begins.get((component, state))
        if found:
            return found[0]
        if self.plan is None:
            return None
        name = component.partition("[")[0]
        states = self.plan.states(name) if name in self.plan.components else []
        if state not in states:
            return None
        position = states.index(state)
        if position == 0 or self.plan.transition(name, state).get("after"):
            return None
        before = self.publishes.get((component, states[position - 1]))
        return before[0] if before else None

    def end(self, component: str, state: str) -> int | None:
        """When a state was first published; None if it was not."""
        found = self.publishes.get((component, state))
        return found[0] if found else None


def find_run(name: str | None) -> Path:
    """The folder of a run: a path, an id, a unique start of one, or (None) the latest."""
    if name and (Path(name) / "run.json").exists():
        return Path(name)
    parent = Path(runs_folder())
    names = sorted(entry.name for entry in parent.iterdir() if (entry / "run.json").exists())
    if name is None:
        if not names:
            raise ChannelError(f"no runs are recorded in {parent}")
        return parent / names[-1]
    matching = [entry for entry in names if entry.startswith(name)]
    if len(matching) != 1:
        what = f"{len(matching)} runs in {parent} are" if matching else f"no run in {parent} is"
        raise ChannelError(f"{what} called {name!r}")
    return parent / matching[0]


def _given_up(history: History) -> set[int]:
    """The pids of the children that were given up, and of those that they had begun."""
    found: set[int] = set()
    grown = {event["child"] for event in history.of("given_up")}
    while grown:
        found |= grown
        born = {e["pid"] for e in history.of("process") if e.get("ppid") in grown}
        grown = born - found
    return found


def read_run(folder: Path) -> History:
    """Load a run's folder.  Half-written last lines (a killed process) are skipped."""
    info = json.loads((folder / "run.json").read_text())
    plan_path = folder / "plan.json"
    plan = Plan.read(plan_path) if plan_path.exists() else None
    events: list[dict[str, Any]] = []
    damaged: list[str] = []
    for file in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
            if not line:
                continue
            try:
                event = {**json.loads(line), "pid": int(file.stem)}
                needed = ("t", "e", "c", "i", "s") if event["e"] in _STATE_EVENTS else ("t", "e")
                events.append(event | {field: event[field] for field in needed})
            except (ValueError, TypeError, KeyError):
                damaged.append(f"{file.name}:{number}")
    events.sort(key=lambda event: event["t"])
    history = History(folder, info, plan, events, damaged=damaged)
    given_up = _given_up(history)
    kinds = {"begin": history.begins, "wait": history.waits, "publish": history.publishes}
    for event in events:
        times = kinds.get(event["e"])
        if times is not None and event["pid"] not in given_up:
            key = (label(event["c"], event["i"]), event["s"])
            times.setdefault(key, []).append(event["t"])
    if plan is not None:
        plan.params.clear()
        for event in history.of("params"):
            plan.params.update(event["values"])
        plan.settle(info["argv"])
    return history
