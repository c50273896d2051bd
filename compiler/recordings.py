"""What recorded starts imported: the file ``SPEC.imports.json``.

For each component, the modules that its process imported until each of its states, in
order, and under ``null`` what it imported after its last one.  A module that was imported
by the body of one above it is indented below it: importing that one is enough.  Where
this holds in every component that has both, it is left out; this makes 460 lines of
14 000 for vLLM, and whatever the components have in common stays complete.
One file may stand for several starts, of other models or configurations: it holds what
all of them imported, each module where the last of them did.

Equal recordings give equal bytes; nothing in them names a machine or a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
RECORDING_VERSION = 1


@dataclass(frozen=True, slots=True)
class Interval:
    """What one component imported until it reached ``until`` (None: after its last state).

    ``modules`` maps each module to the one whose body imported it, in order; None if that
    is not of the interval, or if the engine imported it at run time.
    """

    until: str | None
    modules: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Recording:
    """The imports of recorded starts; ``intervals`` of a component are in order of time.

    ``engine`` is the package, ``version`` its public version, None where it is not known.
    ``torch`` is what the torch of the recorded start was built for (cpu, cuda, hip, xpu), None
    where there was none: modules for one of them may break an engine on another.
    """

    engine: str
    version: str | None
    runs: int
    components: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    torch: str | None = None

    def modules(self, component: str) -> dict[str, str | None]:
        """Every module of a component with its importer, in order."""
        intervals = self.components.get(component, ())
        return {name: by for interval in intervals for name, by in interval.modules.items()}


def merged(one: Recording, other: Recording) -> Recording:
    """What both imported.  Components that only one of them has are kept as they are."""
    components = dict(one.components)
    for name, intervals in other.components.items():
        own = components.get(name)
        components[name] = _common(own, intervals) if own is not None else intervals
    runs = one.runs + other.runs
    torch = one.torch or other.torch
    return Recording(one.engine, one.version or other.version, runs, components, torch)


def _common(one: tuple[Interval, ...], other: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """What both intervals hold, each module where it comes later, in the order of ``one``."""
    states = list(dict.fromkeys(interval.until for interval in one))
    rank = {state: number for number, state in enumerate(states)}
    # A state that only the other one has (an auxiliary one) ends with the next common state.
    where: dict[str, int] = {}
    for number, interval in enumerate(other):
        later = [rank[after.until] for after in other[number:] if after.until in rank]
        where.update(dict.fromkeys(interval.modules, later[0] if later else len(states) - 1))
    found: list[dict[str, str | None]] = [{} for _ in states]
    for interval in one:
        for name, importer in interval.modules.items():
            if name in where:
                found[max(rank[interval.until], where[name])][name] = importer
    return tuple(Interval(s, within(m)) for s, m in zip(states, found, strict=True))


def common(intervals: list[tuple[Interval, ...]]) -> tuple[Interval, ...]:
    """What all of one or more lists of intervals hold: those of a component's replicas."""
    result = intervals[0]
    for other in intervals[1:]:
        result = _common(result, other)
    return result


def within(modules: Mapping[str, str | None]) -> dict[str, str | None]:
    """The same without importers that are not among them, or do not come before."""
    found: dict[str, str | None] = {}
    for name, importer in modules.items():
        found[name] = importer if importer in found else None
    return found


def without(recording: Recording, names: Set[str]) -> Recording:
    """The recording without some modules."""
    components = {
        component: tuple(
            Interval(i.until, within({n: by for n, by in i.modules.items() if n not in names}))
            for i in intervals
        )
        for component, intervals in recording.components.items()
    }
    return replace(recording, components=components)


def reduced(recording: Recording) -> Recording:
    """The recording without modules that are imported by one and the same of its modules.

    Whatever set of modules is made of components and of their times (by union, intersection
    or until a state) holds the importer if it holds such a module.
    """
    while True:
        importers: dict[str, set[str | None]] = {}
        for component in recording.components:
            for name, importer in recording.modules(component).items():
                importers.setdefault(name, set()).add(importer)
        gone = {name for name, by in importers.items() if len(by) == 1 and None not in by}
        if not gone:
            return recording
        components = {
            component: tuple(Interval(i.until, _lifted(i.modules, gone)) for i in intervals)
            for component, intervals in recording.components.items()
        }
        recording = replace(recording, components=components)


def _lifted(modules: Mapping[str, str | None], gone: Set[str]) -> dict[str, str | None]:
    """Without some modules: what they imported was imported by what imported them."""
    found: dict[str, str | None] = {}
    above: dict[str, str | None] = {}  # each module -> the nearest that stays
    for name, importer in modules.items():
        by = above[importer] if importer is not None and importer in gone else importer
        above[name] = by
        if name not in gone:
            found[name] = by
    return found


def render(recording: Recording) -> str:
    """The file's text: one module a line."""
    data = {
        "cfac": RECORDING_VERSION,
        "components": {
            name: [
                {"modules": list(_indented(interval.modules)), "until": interval.until}
                for interval in intervals
            ]
            for name, intervals in sorted(recording.components.items())
        },
        "engine": {
            "package": recording.engine,
            **({"torch": recording.torch} if recording.torch else {}),
            "version": recording.version,
        },
        "kind": "Imports",
        "runs": recording.runs,
    }
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def _indented(modules: Mapping[str, str | None]) -> Iterator[str]:
    """The modules in order, each below the one that imported it."""
    below: dict[str | None, list[str]] = {}
    for name, importer in modules.items():
        below.setdefault(importer, []).append(name)
    stack = [(name, 0) for name in reversed(below.get(None, ()))]
    while stack:
        name, depth = stack.pop()
        yield " " * depth + name
        stack += [(child, depth + 1) for child in reversed(below.get(name, ()))]


def parse(text: str) -> Recording:
    """Read a file's text back; ValueError with what is wrong with it."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("kind") != "Imports":
        raise ValueError("it is no recording of imports")
    if data.get("cfac") != RECORDING_VERSION:
        raise ValueError(f"it is of version {data.get('cfac')!r}, not {RECORDING_VERSION}")
    try:
        engine = data["engine"]
        components = {
            name: tuple(Interval(i["until"], _nested(i["modules"])) for i in intervals)
            for name, intervals in data["components"].items()
        }
        runs, torch = int(data["runs"]), engine.get("torch")
        return Recording(engine["package"], engine["version"], runs, components, torch)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__}: {error})") from error


def _nested(lines: list[Any]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    above: list[str] = []
    for line in lines:
        name = str(line).lstrip(" ")
        if not MODULE.fullmatch(name):
            raise ValueError(f"{name!r} is not a module's name")
        above = above[: len(line) - len(name)]
        found[name] = above[-1] if above else None
        above.append(name)
    return found
