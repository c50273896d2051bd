"""``import: recorded``: the modules of a recorded start, where a spec asks for them.

The recording (see ``recordings``) stands beside the spec, or beside the included file
that says ``recorded``.  What the word means at an auxiliary state A of component C:

- ``does``: all that C's process imported until the stock state that follows A; and all
  that processes forked from C later on import until they are ready, for they inherit it.
  Where a process is forked in A itself, only what that one (and those forked from it)
  imports as well: what C alone needs is imported beside the child.
- ``idle``: all that C's process imported since A (or the stock state before A, if A is
  not in the recording), what came after its last state included.

Left out is what a module in the list imports by itself, and what an earlier recorded
state of the process, or of those it is forked from, has imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from cfac.compiler.diagnostics import Diagnostics, Note, Span
from cfac.compiler.model import Component, Spec, State
from cfac.compiler.recordings import Interval, Recording, parse

WORD = "recorded"
Modules = dict[str, str | None]


def recording_file(spec: str) -> str:
    """The name of a spec's recording: ``fast.yaml`` has ``fast.imports.json``."""
    return os.path.splitext(spec)[0] + ".imports.json"  # noqa: PTH122


def fill_in(spec: Spec, sources: dict[str, str], diagnostics: Diagnostics) -> Spec:
    """``spec`` with the recorded modules; the recordings' texts are added to ``sources``.

    Where there is no recording that fits (CF115) the word stays, so that the state is not
    blamed for doing nothing.
    """
    if not any(state.recorded for c in spec.components.values() for state in c.states):
        return spec
    return _Filler(spec, sources, diagnostics).fill()


@dataclass(slots=True)
class _Filler:
    spec: Spec
    sources: dict[str, str]
    diagnostics: Diagnostics
    #: file name -> its recording; None: there is none, and that is reported
    recordings: dict[str, Recording | None] = field(default_factory=dict)
    used: dict[str, tuple[str | None, Span]] = field(default_factory=dict)

    def fill(self) -> Spec:
        """The spec, with every component filled in."""
        full: dict[tuple[str, str], Modules] = {}
        for component, state in self.states():
            recording = self.recording(state)
            if recording is not None and self.fits(recording, component, state):
                full[component.name, state.name] = self.modules(recording, component, state)
        components = {
            component.name: replace(
                component, states=tuple(self.filled(component, s, full) for s in component.states)
            )
            for component in self.spec.components.values()
        }
        return replace(self.spec, components=components, recordings=self.used)

    def states(self) -> Iterator[tuple[Component, State]]:
        """The states that say ``recorded``."""
        for component in self.spec.components.values():
            for state in component.states:
                if state.recorded is not None:
                    yield component, state

    def filled(
        self, component: Component, state: State, full: dict[tuple[str, str], Modules]
    ) -> State:
        """A state with its modules in the place of the word."""
        own = full.get((component.name, state.name))
        if own is None:
            return state
        have = set(self.before(component, state, full))
        written = set(state.imports)
        known = have.union(own)
        names = [n for n, by in own.items() if n not in have | written and by not in known]
        at = state.imports.index(WORD)
        imports = (*state.imports[:at], *names, *state.imports[at + 1 :])
        if not imports:
            self.diagnostics.error(
                "CF115",
                f"the recording has nothing to import for {component.name}.{state.name}",
                state.recorded,
                help="all of it is imported before: remove the state",
            )
            return state
        recording = self.recording(state)
        torch = recording.torch if recording is not None else None
        part = at, at + len(names)
        return replace(state, imports=imports, recorded_part=part, recorded_torch=torch)

    def before(
        self,
        component: Component,
        state: State,
        full: dict[tuple[str, str], Modules],
        seen: tuple[str, ...] = (),
    ) -> Iterator[str]:
        """What recorded states have imported in this process, or in those it is forked from."""
        for earlier in component.states[: component.position(state.name)]:
            yield from full.get((component.name, earlier.name), ())
        fork = _fork(component)
        parent = self.spec.components.get(fork[0]) if fork is not None else None
        at = parent.state(fork[1]) if parent is not None and fork is not None else None
        seen = (*seen, component.name)  # a circle of forks is reported elsewhere
        if parent is not None and at is not None and parent.name not in seen:
            yield from full.get((parent.name, at.name), ())
            yield from self.before(parent, at, full, seen)

    # -- what the word means -----------------------------------------------------

    def modules(self, recording: Recording, component: Component, state: State) -> Modules:
        """All modules that the word means at a state, with their importers, in order."""
        intervals = recording.components[component.name]
        here = component.position(state.name)
        if state.idle_while is not None:
            return _join(intervals[_since(intervals, component, here) :])
        stock = [s.name for s in component.states[here + 1 :] if not s.aux]
        untils = [interval.until for interval in intervals]
        end = untils.index(stock[0]) if stock else len(_start(intervals)) - 1
        found = _join(intervals[: end + 1])
        now: list[Modules] = []
        for child in self.children(component):
            fork = _fork(child)
            at = component.position(fork[1]) if fork is not None else -1
            if child.name not in recording.components or at < here:
                continue
            needs = self.needs(recording, child)
            if at == here:
                now.append(needs)
            else:
                found.update(_new(needs, found))
        for needs in now:
            found = {name: by for name, by in found.items() if name in needs}
        return found

    def needs(
        self, recording: Recording, component: Component, seen: tuple[str, ...] = ()
    ) -> Modules:
        """All that a process, and those forked from it, imported until they were ready."""
        found = _join(_start(recording.components.get(component.name, ())))
        seen = (*seen, component.name)
        for child in self.children(component):
            if child.name not in seen:
                found.update(_new(self.needs(recording, child, seen), found))
        return found

    def children(self, component: Component) -> list[Component]:
        """The components whose processes are forked from this one's, in a state that it has."""
        found = []
        for child in self.spec.components.values():
            fork = _fork(child)
            if fork is None or fork[0] != component.name or child is component:
                continue
            if component.state(fork[1]) is not None:
                found.append(child)
        return found

    # -- the file ----------------------------------------------------------------

    def recording(self, state: State) -> Recording | None:
        """The recording for a state; None with an error if there is none that can be read."""
        assert state.recorded is not None
        files = [recording_file(self.spec.file), recording_file(state.recorded.file)]
        file = next((f for f in files if Path(f).exists()), files[0])
        if file not in self.recordings:
            self.recordings[file] = self.read(file, state.recorded)
        return self.recordings[file]

    def read(self, file: str, span: Span) -> Recording | None:
        """Read a recording; an error at the word that asks for it."""
        hint = f"record a start: cfac record --imports {self.spec.file} -- COMMAND"
        try:
            text = Path(file).read_text("utf-8")
        except FileNotFoundError:
            self.diagnostics.error("CF115", f"there is no recording {file}", span, help=hint)
            return None
        except (OSError, ValueError) as error:
            self.diagnostics.error("CF115", f"cannot read {file}: {error}", span, help=hint)
            return None
        self.sources[file] = text
        try:
            recording = parse(text)
        except ValueError as error:
            self.diagnostics.error("CF115", f"cannot use {file}: {error}", span, help=hint)
            return None
        engine = self.spec.engine
        if engine is not None and engine.package != recording.engine:
            message = f"{file} is a recording of {recording.engine}, not of {engine.package}"
            notes = [Note("the engine is named here", engine.span)]
            self.diagnostics.error("CF115", message, span, notes=notes, help=hint)
            return None
        self.used[file] = (recording.version, span)
        return recording

    def fits(self, recording: Recording, component: Component, state: State) -> bool:
        """Whether the recording knows the component's stock states."""
        intervals = recording.components.get(component.name)
        known = [interval.until for interval in intervals or ()]
        stock = [s.name for s in component.states[1:] if not s.aux]
        lacking = [name for name in stock if name not in known]
        if intervals is not None and not lacking:
            return True
        what = f"{component.name}.{lacking[0]}" if intervals and lacking else component.name
        self.diagnostics.error(
            "CF115",
            f"the recording says nothing of {what}",
            state.recorded,
            notes=[Note("declared here", component.span)],
            help=f"record again: cfac record --imports {self.spec.file} -- COMMAND",
        )
        return False


def _fork(component: Component) -> tuple[str, str] | None:
    """The component and the state that a component's process is forked from."""
    process = component.process
    if process is None or process.strategy.kind != "fork" or process.strategy.at is None:
        return None
    return process.strategy.at.component, process.strategy.at.state


def _start(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """The intervals up to the last state."""
    return tuple(interval for interval in intervals if interval.until is not None)


def _since(intervals: tuple[Interval, ...], component: Component, here: int) -> int:
    """The first interval after a state, or after the stock state before it."""
    stock = [s.name for s in component.states[:here] if not s.aux]
    for name in (component.states[here].name, *reversed(stock)):
        for number, interval in enumerate(intervals):
            if interval.until == name:
                return number + 1
    return 0


def _join(intervals: Iterable[Interval]) -> Modules:
    return {name: by for interval in intervals for name, by in interval.modules.items()}


def _new(modules: Modules, known: Modules) -> Modules:
    return {name: by for name, by in modules.items() if name not in known}
