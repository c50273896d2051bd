"""A recorded run as lanes of bars: what the timeline's pictures and texts are made from.

Times are seconds since the run's origin, the birth of its root process, so that the
imports before the first state count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from cfac.compiler.draw.chunks import Chunk, read_chunks
from cfac.compiler.draw.text import clean
from cfac.runtime.history import History, Instance
from cfac.runtime.table import label

_NS = 1e9
#: A process that ran so much longer than the start itself was not starting all that time.
_OLD_SECONDS, _OLD_FACTOR = 5.0, 5.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One transition of one component.

    ``waited`` is when it began to wait: its wait event, or, where the engine itself
    waits, the component's state before.  ``gate`` is the awaited state that came last.
    ``open``: it was never published; without ``begun`` it was still waiting then, and
    ``begin`` is the end of the picture.  ``known``: the begin was recorded.
    """

    component: str
    state: str
    begin: float
    end: float
    waited: float | None = None
    needs: tuple[str, ...] = ()
    gate: str | None = None
    kind: str = "stock"
    open: bool = False
    begun: bool = True
    known: bool = True

    @property
    def name(self) -> str:
        """``component.State``."""
        return f"{self.component}.{self.state}"

    @property
    def wait(self) -> float:
        """Seconds spent waiting."""
        return 0.0 if self.waited is None else max(0.0, self.begin - self.waited)


@dataclass(slots=True)
class Lane:
    """One component: its process's birth and first state (the lead-in), then its bars."""

    name: str
    base: str
    index: int | None
    born: float | None = None
    alive: float = 0.0
    bars: list[Bar] = field(default_factory=list)

    def joined(self) -> Iterator[list[Bar]]:
        """The bars that were begun, those that overlap (a merged group) together."""
        group: list[Bar] = []
        for bar in self.bars:
            if not bar.begun:
                continue
            if group and (bar.begin >= group[-1].end or bar.open or bar.kind == "initial"):
                yield group
                group = []
            group.append(bar)
        if group:
            yield group


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was recorded beside the transitions; ``kind`` is the event's."""

    kind: str
    time: float
    text: str
    component: str | None = None
    #: after the last state of a complete start
    after: bool = False


@dataclass(slots=True)
class Timeline:
    """One run.  ``total`` is the last state's time, ``end`` where the picture ends."""

    id: str
    name: str
    argv: str
    lanes: list[Lane]
    marks: list[Mark]
    total: float
    end: float
    states: int
    missing: list[str]
    #: seconds that the first process had run before the start, where that is not drawn
    before: float | None = None
    #: where its times count from, CLOCK_MONOTONIC in ns
    origin: int = 0
    #: what its processes loaded
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every declared state was reached before anything failed."""
        return not self.missing and not any(
            mark.kind == "failed" and not mark.after for mark in self.marks
        )

    @property
    def bars(self) -> list[Bar]:
        """All bars, lane by lane."""
        return list(chain.from_iterable(lane.bars for lane in self.lanes))


def one_line(text: object) -> str:
    """``text`` in one line, without control characters."""
    return clean(" ".join(str(text).split()))


def _command(argv: Iterable[object]) -> str:
    """A command line, without the folder of its program."""
    program, *arguments = [*map(str, argv)] or [""]
    return one_line(" ".join([program.rpartition("/")[2], *arguments]))


def read(history: History, name: str | None = None) -> Timeline:
    """The timeline of a recorded run, under ``name`` (default: its id)."""
    return _Reader(history).timeline(name)


class _Reader:
    def __init__(self, history: History) -> None:
        self.history = history
        self.plan = history.plan
        #: component label -> (component, index), in the order of first events
        self.who: dict[str, tuple[str, int | None]] = {}
        self.host: dict[str, int] = {}
        self.first: dict[int, int] = {}
        for event in history.events:
            if event["e"] in {"publish", "begin", "wait"}:
                name = label(event["c"], event["i"])
                self.who.setdefault(name, (event["c"], event["i"]))
                self.host.setdefault(name, event["pid"])
                self.first.setdefault(event["pid"], event["t"])
        self.root = int(history.info["root"])
        for event in history.events:
            if event["pid"] == self.root:
                self.first.setdefault(event["pid"], event["t"])
        hosts = {*self.host.values(), self.root}
        self.births: dict[int, int] = {
            event["pid"]: min(int(event["started"]), self.first[event["pid"]])
            for event in history.of("process")
            if event["pid"] in hosts and isinstance(event.get("started"), int)
        }
        self.ends = {key: times[0] for key, times in history.publishes.items()}
        self.own: dict[str, list[int]] = {}
        for (name, _), time in sorted(self.ends.items(), key=lambda item: item[1]):
            self.own.setdefault(name, []).append(time)
        starting = [t for key, t in self.ends.items() if not self._exit(key)]
        self.last = max(starting or self.first.values(), default=0)
        self.missing = list(self._missing())
        self.before: float | None = None
        self.origin = self._origin()

    def _exit(self, key: Instance) -> bool:
        """Whether a state is the end of a process, hours after the start perhaps."""
        if self.plan is None or key[0] not in self.who:
            return False
        return bool(self.plan.transition(self.who[key[0]][0], key[1]).get("exit"))

    def _missing(self) -> Iterator[Instance]:
        if self.plan is None:
            return
        for component, index in self.plan.instances():
            name = label(component, index)
            self.who.setdefault(name, (component, index))
            for state in self.plan.states(component):
                if (name, state) not in self.ends and not self._exit((name, state)):
                    yield name, state

    def _origin(self) -> int:
        hosts = [t for pid, t in self.first.items() if pid in self.host.values()]
        first = min(hosts, default=int(self.history.info.get("monotonic", 0)))
        born = min(self.births.values(), default=first)
        lead, rest = (first - born) / _NS, (self.last - first) / _NS
        if lead > _OLD_SECONDS and lead > _OLD_FACTOR * rest:
            self.before = lead
            return first
        return min(born, first)

    def _at(self, nanoseconds: int) -> float:
        return (nanoseconds - self.origin) / _NS

    def timeline(self, name: str | None) -> Timeline:
        marks = list(self._marks())
        total = self._at(self.last)
        end = total
        if self.missing:
            kinds = {"begin", "wait", "publish", "failed", "ended"}
            seen = [e["t"] for e in self.history.events if e["e"] in kinds]
            end = max([total, *(self._at(t) for t in seen)])
        elif any(mark.kind == "failed" and not mark.after for mark in marks):
            end = max(total, *(mark.time for mark in marks if mark.kind == "failed"))
        lanes = {who: self._lane(who) for who in self.who}
        for key, time in self.ends.items():
            if self._exit(key) and time > self.last and not self.missing:
                text = f"{key[0]}.{key[1]}, its process's end"
                marks.append(Mark("note", self._at(time), text, key[0], after=True))
            else:
                lanes[key[0]].bars.append(self._bar(key, time))
        for key in dict.fromkeys([*self.history.begins, *self.history.waits]):
            if key not in self.ends:
                lanes[key[0]].bars.append(self._open(key, end))
        for lane in lanes.values():
            lane.bars.sort(key=lambda bar: (bar.end, bar.begin))
        info = self.history.info
        return Timeline(
            id=one_line(info["id"]),
            name=one_line(name or info["id"]),
            argv=_command(info.get("argv") or ()),
            lanes=_in_order([*lanes.values(), *self._launcher()]),
            marks=sorted(marks, key=lambda mark: mark.time),
            total=total,
            end=max(end, 1e-6),
            states=len(self.ends),
            missing=[one_line(f"{who}.{state}") for who, state in self.missing],
            before=self.before,
            origin=self.origin,
            chunks=read_chunks(self.history, self.origin),
        )

    def _lane(self, who: str) -> Lane:
        lane = Lane(one_line(who), *self.who[who])
        pid = self.host.get(who)
        if pid is not None:
            lane.alive = self._at(self.first[pid])
            if pid in self.births and self.births[pid] >= self.origin:
                lane.born = self._at(self.births[pid])
        return lane

    def _launcher(self) -> Iterator[Lane]:
        """The root process where it hosts no component, as ``cfac run`` of processes."""
        if self.root in set(self.host.values()) or self.births.get(self.root, -1) < self.origin:
            return
        names = [e["name"] for e in self.history.of("process") if e["pid"] == self.root]
        born, alive = self._at(self.births[self.root]), self._at(self.first[self.root])
        yield Lane(one_line(names[0]), "", None, born, alive)

    def _before(self, who: str, time: int) -> int | None:
        """The component's latest publish up to ``time``."""
        times = self.own.get(who, [])
        position = bisect_right(times, time)
        return times[position - 1] if position else None

    def _declared(self, key: Instance) -> bool:
        component = self.who[key[0]][0]
        if self.plan is None or component not in self.plan.components:
            return False
        return key[1] in self.plan.states(component)

    def _kind(self, key: Instance) -> str:
        if self.plan is None or not self._declared(key):
            return "stock"
        component = self.who[key[0]][0]
        if self.plan.states(component)[0] == key[1]:
            return "initial"
        return "aux" if key[1] in self.plan.components[component]["aux"] else "stock"

    def _needs(self, key: Instance) -> list[Instance]:
        component, index = self.who[key[0]]
        if self.plan is None or not self._declared(key) or self._kind(key) == "initial":
            return []
        return self.plan.needs(f"{component}.{key[1]}", index)

    def _wait(self, key: Instance, begin: int) -> tuple[int | None, str | None]:
        """When the transition came to its wait, and which awaited state came last."""
        needs = self._needs(key)
        found = self.history.waits.get(key)
        if found:
            waited: int | None = min(found[0], begin)
        else:
            own = key in self.history.begins and needs
            waited = self._before(key[0], begin) if own else None
        if waited is None:
            return None, None
        late = [(end, need) for need in needs if (end := self.ends.get(need, begin)) > waited]
        return waited, one_line(".".join(max(late)[1])) if late else None

    def _bar(self, key: Instance, time: int) -> Bar:
        kind, known = self._kind(key), True
        begin = None
        if kind == "initial":
            begin = time
        elif key in self.history.begins or self._declared(key):
            try:
                begin = self.history.begin(*key)
            except (KeyError, ValueError):  # it is not declared
                begin = self.history.begins[key][0]
            known = begin is not None
        if begin is None:
            begin = self._before(key[0], time - 1)
        begin = time if begin is None else min(begin, time)
        waited, gate = self._wait(key, begin) if known else (None, None)
        return Bar(
            component=one_line(key[0]),
            state=one_line(key[1]),
            begin=self._at(begin),
            end=self._at(time),
            waited=None if waited is None else self._at(waited),
            needs=tuple(one_line(".".join(need)) for need in self._needs(key)),
            gate=gate,
            kind=kind,
            known=known,
        )

    def _open(self, key: Instance, end: float) -> Bar:
        begun = key in self.history.begins
        limits = [
            self._at(event["t"])
            for event in self.history.events
            if (event["e"] == "failed" and event["c"] == key[0])
            or (event["e"] == "ended" and event["pid"] == self.host.get(key[0]))
            or (event["e"] == "ended" and key[0] in event["components"])
        ]
        end = min([end, *limits])
        times = self.history.begins.get(key) or self.history.waits[key]
        begin = min(self._at(times[0]), end) if begun else end
        waited, gate = self._wait(key, times[0])
        if not begun:
            pending = [need for need in self._needs(key) if need not in self.ends]
            gate = one_line(".".join(pending[0])) if pending else gate
        return Bar(
            component=one_line(key[0]),
            state=one_line(key[1]),
            begin=begin,
            end=end,
            waited=None if waited is None else self._at(waited),
            needs=tuple(one_line(".".join(need)) for need in self._needs(key)),
            gate=gate,
            kind=self._kind(key),
            open=True,
            begun=begun,
        )

    def _marks(self) -> Iterator[Mark]:
        for event in self.history.events:
            kind, time = event["e"], self._at(event["t"])
            after = not self.missing and event["t"] > self.last
            if kind == "failed":
                state = event.get("s")
                where = f" in state {state}" if state else ""
                text = f"{event['c']} failed{where}: {event['cause']}"
                yield Mark(kind, time, one_line(text), one_line(event["c"]), after)
            elif kind == "ended":
                who = ", ".join(event["components"]) or f"process {event['pid']}"
                yield Mark(kind, time, one_line(f"{who}: the process {event['how']}"), None, after)
            elif kind in {"note", "stall"}:
                lines = [clean(line) for line in str(event["text"]).splitlines()]
                yield Mark(kind, time, "\n".join(lines), None, after)


def _in_order(lanes: Iterable[Lane]) -> list[Lane]:
    """Components by first appearance, replicas by index."""
    lanes = list(lanes)
    first: dict[str, tuple[float, str]] = {}
    for lane in lanes:
        seen = [bar.end for bar in lane.bars] or [float("inf")]
        time = min(seen) if lane.born is None else lane.born
        first[lane.base] = min((time, lane.base), first.get(lane.base, (time, lane.base)))
    return sorted(lanes, key=lambda lane: (first[lane.base], lane.index or 0))


def align(timelines: list[Timeline]) -> None:
    """Give all runs the order of components of the first that has them."""
    order = {"": 0}  # what launched the components
    for timeline in timelines:
        for lane in timeline.lanes:
            order.setdefault(lane.base, len(order))
    for timeline in timelines:
        timeline.lanes.sort(key=lambda lane: (order[lane.base], lane.index or 0))


def duration(seconds: float, micro: str = "µs") -> str:
    """A length of time with three digits or so: ``4 µs``, ``71 ms``, ``20.1 s``."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} {micro}"
    if seconds < 0.9995:
        milli = seconds * 1e3
        return f"{milli:.1f} ms" if milli < 9.95 else f"{milli:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h"
