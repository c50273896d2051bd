"""The validated spec: frozen data that every later pass reads.

Vocabulary follows the paper (section 3.1) and its reading in docs/design: the
nodes of the graph are *transitions*, named by the state they enter
(``core.Ready``); an ``after`` is written at the transition that waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cfac.compiler.diagnostics import Span

if TYPE_CHECKING:
    from cfac.compiler.layouts.chunkmap import ChunkMap

IndexKind = Literal["none", "all", "offset", "at", "layout"]
SiteKind = Literal["publish", "wait", "begin", "take", "stop", "start", "context"]
#: Sites of a component's process, not of one of its transitions.
PROCESS_KINDS: tuple[SiteKind, ...] = ("stop", "start", "context")
#: How a process begins before the engine starts it.
BirthKind = Literal["fork", "prespawn"]
BIRTHS: tuple[BirthKind, ...] = ("fork", "prespawn")
#: Why a transition comes after another one's: it waits, or its process begins there.
WaitKind = Literal["after"] | BirthKind
#: Whose run a component's states belong to: see cfac.compiler.runs.
RunKind = Literal["own", "joined", "local"]
At = Literal["entry", "exit", "before", "after", "around", "replace_callee", "process_exit"]
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Index:
    """Which replicas a reference means.

    ``none``: the component has one; ``all``: ``x.*.S``; ``offset``: ``x[i-1].S``
    (value -1), the neighbour of the waiting replica, absent at the edge;
    ``at``: ``x[0].S``; ``layout``: ``chunk[self.chunks].S`` (value ``chunks``).
    """

    kind: IndexKind = "none"
    value: int | str | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to transitions of one component, as written in the spec."""

    component: str
    state: str
    index: Index
    span: Span

    def __str__(self) -> str:
        kind, value = self.index.kind, self.index.value
        if kind == "none":
            return f"{self.component}.{self.state}"
        if kind == "all":
            return f"{self.component}.*.{self.state}"
        if kind == "offset":
            offset = int(value or 0)
            text = "i" if offset == 0 else f"i{offset:+d}"
            return f"{self.component}[{text}].{self.state}"
        if kind == "at":
            return f"{self.component}[{value}].{self.state}"
        return f"{self.component}[self.{value}].{self.state}"


@dataclass(frozen=True, slots=True)
class Dependency:
    """One entry of an ``after`` list.

    ``schedule`` marks an order chosen for speed: the chain need not contain it.  ``bound``
    marks one of a neighbour, ``x[i-R].S``, that stands for a number: of the replicas before
    i fewer than R may not have reached S (docs/tensors.md says why that is enough).
    """

    ref: Ref
    schedule: bool = False
    reason: str | None = None
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """What a transition does beside its state (checked by the hazard pass).

    ``before`` is no deed but a demand: it is over when its process opens what ``value`` names.
    ``carries`` and ``takes`` are the two sides of a split.
    ``together``, of ``holds``: the component's replicas hold it as one, each its part.
    """

    kind: str
    value: str | None
    until: Ref | None
    span: Span
    together: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """The device that a process opens for itself: the one of its replica's index.

    ``kind`` is cuda or xpu, or ``module:attribute`` of the engine that tells it at run time.
    """

    kind: str
    when: Condition | None
    span: Span


@dataclass(frozen=True, slots=True)
class State:
    """A state, and with it the transition that enters it.

    ``imports`` are the modules that an auxiliary state imports before it is published.
    With ``idle_while`` that happens while the component waits, for that transition.
    ``recorded`` is where the spec asks for recorded modules; they are the slice
    ``recorded_part`` of ``imports``, recorded with a torch that was built for
    ``recorded_torch`` (None: without one).  Where ``imports_when`` does not hold, nothing is
    imported.  ``device`` is opened after the imports.
    """

    name: str
    span: Span
    aux: bool = False
    after: tuple[Dependency, ...] = ()
    cost: float | None = None
    effects: tuple[Effect, ...] = ()
    imports: tuple[str, ...] = ()
    imports_when: Condition | None = None
    idle_while: Ref | None = None
    recorded: Span | None = None
    recorded_part: tuple[int, int] | None = None
    recorded_torch: str | None = None
    device: Device | None = None

    @property
    def works(self) -> bool:
        """Whether the state does work of its own."""
        return bool(self.imports) or self.device is not None


@dataclass(frozen=True, slots=True)
class Test:
    """One condition: ``subject`` is ``param:NAME``, ``version`` or ``platform``."""

    subject: str
    op: Literal["is", "not", "in", "above", "below", "matches"]
    value: Scalar | tuple[Scalar, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Condition:
    """A ``when``: all of its tests hold."""

    tests: tuple[Test, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Strategy:
    """``engine``: as the engine does it; ``fork``: from the parent once it is in ``at``;
    ``prespawn``: an interpreter of its own, started once the parent is in ``at``.

    ``at`` is None for a prespawn as soon as the parent is there at all (its first state),
    and for a reference that is malformed or leads nowhere.
    """

    kind: Literal["engine"] | BirthKind = "engine"
    at: Ref | None = None


@dataclass(frozen=True, slots=True)
class ProcessName:
    """The multiprocessing name of a process in some versions of the engine."""

    text: str
    when: Condition | None
    span: Span


@dataclass(frozen=True, slots=True)
class Alias:
    """A stock state that a forked child has by birth, and its parent's that it stands for."""

    state: Ref
    of: Ref


@dataclass(frozen=True, slots=True)
class Process:
    """How a component's process comes to be.

    ``name`` is the multiprocessing name by which the runtime knows the process;
    ``{i}`` in it stands for the replica index.  Of ``names`` exactly one holds for each
    version of the engine; where that is not known, ``name`` is the first.  ``stop`` is
    where the engine begins to end the process by itself: after that its end is no
    failure.  ``start`` is the callee that makes the process object (the child is there
    before and is adopted there); ``context`` are callees that return the multiprocessing
    context (all of them apply).
    """

    spawned_by: str | None
    name: str | None
    strategy: Strategy
    span: Span
    stop: tuple[Site, ...] = ()
    start: tuple[Site, ...] = ()
    context: tuple[Site, ...] = ()
    names: tuple[ProcessName, ...] = ()
    aliases: tuple[Alias, ...] = ()

    def of(self, kind: SiteKind) -> tuple[Site, ...]:
        """The sites of one kind; none for the kinds of a transition."""
        return {"stop": self.stop, "start": self.start, "context": self.context}.get(kind, ())


@dataclass(frozen=True, slots=True)
class Policy:
    """An interval from the process's start to a state: ``gc: frozen`` keeps the collector off."""

    gc: Literal["frozen"]
    until: Ref
    span: Span
    when: Condition | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """A finite automaton: ordered states; ``states[0]`` is where it starts.

    ``replicas`` is None (one, not indexed), a literal count, or a parameter's name.
    """

    name: str
    span: Span
    states: tuple[State, ...]
    replicas: int | str | None = None
    when: Condition | None = None
    process: Process | None = None
    policy: Policy | None = None

    def state(self, name: str) -> State | None:
        """The state called ``name``, or None."""
        for state in self.states:  # in half the time that next() takes
            if state.name == name:
                return state
        return None

    def position(self, name: str) -> int:
        """The index of the state called ``name``; ValueError if there is none."""
        return [s.name for s in self.states].index(name)

    @property
    def fork(self) -> Dependency | None:
        """The order that a fork or a prespawn brings: the child begins after its parent's state."""
        strategy = self.process.strategy if self.process is not None else Strategy()
        if strategy.at is None or len(self.states) < 2:
            return None
        how = "forked from" if strategy.kind == "fork" else "prespawned at"
        return Dependency(strategy.at, schedule=True, reason=f"{how} {strategy.at}")

    def waits(self, state: State) -> Iterator[tuple[Dependency, WaitKind]]:
        """What a transition comes after beside its own component's order."""
        for dependency in state.after:
            yield dependency, "after"
        if self.fork is not None and self.process is not None and state is self.states[1]:
            yield self.fork, "fork" if self.process.strategy.kind == "fork" else "prespawn"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter's value comes from at run time.

    ``argv``: an option on the command line; ``value``: an expression at a state;
    ``program``: whether the process was started as that program with those first words.
    """

    span: Span
    argv: tuple[str, ...] = ()
    value: str | None = None
    at: Ref | None = None
    program: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter known only when the engine starts."""

    name: str
    type: Literal["int", "str", "bool"]
    default: Scalar
    sources: tuple[Source, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Site:
    """An anchor: one place in the engine's source.  Never a line number.

    ``places`` are candidates ``module:qualname`` (or ``module``), of which exactly
    one exists in a given engine version.  ``names`` are the dotted suffixes that
    match (several: any of them).
    """

    span: Span
    kind: SiteKind
    at: At
    places: tuple[str, ...] = ()
    target: Literal["call", "import", "assign"] | None = None
    names: tuple[str, ...] = ()
    within: str | None = None
    arg_contains: str | None = None
    nth: int | None = None
    expect: int = 1
    when: Condition | None = None
    index: str | None = None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """Where one transition lives: engine sites, or a Python callable (``run``)."""

    ref: Ref
    sites: tuple[Site, ...] = ()
    run: str | None = None

    def of(self, kind: SiteKind) -> tuple[Site, ...]:
        """The sites of one kind."""
        return tuple(s for s in self.sites if s.kind == kind)


@dataclass(frozen=True, slots=True)
class Defer:
    """Work of the engine's module imports that is moved to its first use.

    ``name`` is the dotted suffix of the callee.  ``places`` are modules, or
    ``package.**``.  ``until``, of a call, is the module whose import it waits for.
    """

    kind: Literal["decorator", "call", "import"]
    name: str
    places: tuple[str, ...]
    span: Span
    until: str | None = None

    @property
    def label(self) -> str:
        """What edits and reports call it."""
        return f"defer:{self.name}"


@dataclass(frozen=True, slots=True)
class Remember:
    """Work whose outcome is kept from one start to the next.

    ``compiled``: ``name`` is a module that executes source text which it makes.
    ``result``: ``name`` is a function, ``files`` are patterns of the files on which its
    result depends: of the names below its first argument, a path, or, with ``below`` of
    ``sys.path``, of paths in each folder there.
    """

    kind: Literal["compiled", "result"]
    name: str
    span: Span
    files: tuple[str, ...] = ()
    below: Literal["argument", "sys.path"] = "argument"


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Transitions that run as one (DESIGN: merging)."""

    name: str
    of: tuple[Ref, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Layout:
    """A relation: ``lists[k]`` are the indices that ``component[k]`` relates to.

    Literal ones are written in the spec.  Those of a refinement come from files, which are
    known when the engine starts: ``symbolic`` ones stay so in the template graph (their
    lists are one example).  There the component's replicas may be ``numbered`` by those of
    another (``of chunk``: a piece by its chunk).  ``shift`` is then by how much the index
    grows at most from the waiting replica to those that it relates to; None if it may be any.
    """

    component: str
    relation: str
    lists: Sequence[tuple[int, ...]]
    span: Span
    derived: bool = False
    symbolic: bool = False
    numbered: str | None = None
    shift: int | None = None


@dataclass(frozen=True, slots=True)
class Refine:
    """``refine:`` of a component whose replicas are tensors in files (paper section 4.2).

    ``chunk``, ``piece`` and ``states`` are the states of the derived components with their
    positions.  ``chunk_size`` in bytes, None: chosen where it is loaded.  ``model`` is the
    file, folder or index whose headers are read now, None: only when the engine starts.
    """

    component: str
    span: Span
    chunk: tuple[tuple[str, Span], ...]
    piece: tuple[tuple[str, Span], ...]
    states: tuple[tuple[str, Span], ...]
    ring: int
    ring_span: Span
    depth: int = 1
    release: Literal["pieces", "tensors"] = "pieces"
    chunk_size: int | None = None
    chunk_size_span: Span | None = None
    model: str | None = None
    model_span: Span | None = None


@dataclass(frozen=True, slots=True)
class Refined:
    """A refinement that was derived: from which component, and for which model."""

    refine: Refine
    naive: Component
    chunks: ChunkMap | None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A configuration in which the patched engine must start as stock."""

    when: Condition
    reason: str
    span: Span


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine package and the versions that the bindings are written for."""

    package: str
    versions: str
    span: Span
    unsupported: tuple[Unsupported, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """A whole spec after includes and overlays."""

    name: str
    file: str
    span: Span
    components: Mapping[str, Component]
    params: Mapping[str, Param] = field(default_factory=dict)
    chain: tuple[tuple[Ref, ...], ...] = ()
    chain_span: Span | None = None
    merges: tuple[MergeGroup, ...] = ()
    bindings: tuple[Binding, ...] = ()
    defers: tuple[Defer, ...] = ()
    remembers: tuple[Remember, ...] = ()
    layouts: Mapping[tuple[str, str], Layout] = field(default_factory=dict)
    engine: Engine | None = None
    transport: Literal["thread", "process", "coroutine"] = "process"
    refines: tuple[Refine, ...] = ()
    refined: tuple[Refined, ...] = ()
    #: counts that the files of a model give: parameter's name -> value.
    counts: Mapping[str, int] = field(default_factory=dict)
    #: file name -> text, of the spec and all it includes; for carets and hashes.
    sources: Mapping[str, str] = field(default_factory=dict)
    #: component -> the kind of its run, where that is not the engine's own (see runs).
    runs: Mapping[str, RunKind] = field(default_factory=dict)
    #: file name of a recording -> the engine's version in it, and where it is asked for.
    recordings: Mapping[str, tuple[str | None, Span]] = field(default_factory=dict)

    def run_of(self, component: str) -> RunKind:
        """The kind of run that a component's states belong to."""
        return self.runs.get(component, "own")

    def transitions(self) -> Iterator[tuple[Component, State]]:
        """Every transition: each component's states but its first."""
        for component in self.components.values():
            for state in component.states[1:]:
                yield component, state

    def state_of(self, ref: Ref) -> State | None:
        """The state that ``ref`` names, or None."""
        component = self.components.get(ref.component)
        return component.state(ref.state) if component else None
