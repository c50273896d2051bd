"""The refined components, from the naive one and ``refine:`` (paper section 4.2).

Let the naive component T have the states s0 < … < sm, one replica for each tensor.

1. *Split.*  For each piece p (tensor ∩ chunk) and stage s1 … sm one transition p.s takes the
   place of T.s; it has the same waits, and ``T[i-1].s`` becomes the piece before, in file order.
2. *Merge.*  The transitions p.s of the pieces of one chunk become chunk.s.  Waits are united;
   ``T[i-1].s`` becomes ``chunk[i-1].s``, because pieces ascend through chunks.
3. *Rename.*  T.sm becomes T.Loaded, T.s0 T.Alloc; whoever waited for T.sm waits for T.Loaded.
4. *Add* what is auxiliary: piece.Copied, chunk.Destroyed, and the ring: chunk i is not read
   before the chunk R before it is destroyed.  With ``depth`` D the stages keep order only at a
   distance of D; only orders that the naive component marks ``schedule: true`` may give way.
Ring and stages are bounds: at run time any R buffers and any D reads will do.

With ``release: pieces`` the graph is acyclic for every layout and every ring (``proof`` says
why); with ``release: tensors``, the paper's form, where no tensor spans more than R chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cfac.compiler.diagnostics import Diagnostics, Note, Span, did_you_mean
from cfac.compiler.layouts.chunkmap import ChunkMap, Rows, cut, read_headers
from cfac.compiler.layouts.files import LayoutError
from cfac.compiler.layouts.read import CHUNK, COUNTS, PIECE, parse_size
from cfac.compiler.layouts.rename import rename_refs
from cfac.compiler.model import (
    Component,
    Dependency,
    Effect,
    Index,
    Layout,
    Param,
    Ref,
    Refine,
    Refined,
    Spec,
    State,
)

#: Models with at most this many pieces are expanded in the graph, and checked exactly.
MAX_EXACT = 4096
#: As many lists as any count may want.
_ANY = 1 << 31


def derive(
    spec: Spec, model: str | None, chunk_size: str | None, diagnostics: Diagnostics
) -> Spec | None:
    """``spec`` with its refined components; None after an error that leaves no graph.

    ``model`` and ``chunk_size`` (from the command line) take the place of the spec's own.
    """
    for refine in spec.refines:
        if model is not None:
            refine = replace(refine, model=model, model_span=refine.span)
        if chunk_size is not None:
            try:
                size = parse_size(chunk_size)
            except ValueError as error:
                diagnostics.error("CF623", f"--chunk-size: {error}", refine.span)
                size = None
            refine = replace(refine, chunk_size=size)
        derived = _Derivation(spec, refine, diagnostics).run()
        if derived is None:
            return None
        spec = derived
    return spec


class _Derivation:
    """One refinement of one spec."""

    def __init__(self, spec: Spec, refine: Refine, diagnostics: Diagnostics) -> None:
        self.spec = spec
        self.refine = refine
        self.diagnostics = diagnostics
        self.failed = False

    def fail(
        self, message: str, span: Span, help: str | None = None, notes: Sequence[Note] = ()
    ) -> None:
        """Report what cannot be derived."""
        self.diagnostics.error("CF624", message, span, help=help, notes=notes)
        self.failed = True

    def run(self) -> Spec | None:
        """The refined spec, or None."""
        refine, spec = self.refine, self.spec
        naive = spec.components.get(refine.component)
        if naive is None:
            hint = did_you_mean(refine.component, spec.components)
            message = f"unknown component {refine.component!r}"
            self.diagnostics.error("CF201", message, refine.span, help=hint)
            return None
        self.naive = naive
        self.check()
        return None if self.failed else self.refined(naive, self.read())

    def refined(self, naive: Component, chunks: ChunkMap | None) -> Spec | None:
        """The spec with the derived components, counts and layouts."""
        refine, spec = self.refine, self.spec
        components: dict[str, Component] = {}
        for name, component in spec.components.items():
            if name == naive.name:
                components[CHUNK] = self.chunk()
                if refine.release == "pieces":
                    components[PIECE] = self.piece()
                components[name] = self.tensor()
            else:
                components[name] = component
        renamed = rename_refs(replace(spec, components=components), self.rename)
        if any(item.code == "CF624" for item in self.diagnostics.errors):
            return None
        count = str(naive.replicas)
        example = spec.params[count].default if count in spec.params else 1
        default = example if type(example) is int else 1
        params = dict(renamed.params)
        for name in COUNTS.values() if refine.release == "pieces" else [COUNTS["chunks"]]:
            params[name] = Param(name, "int", default, (), refine.span)
        counts = dict(renamed.counts)
        if chunks is not None:
            counts |= {count: chunks.tensors, "chunks": chunks.chunks, "pieces": chunks.pieces}
        return replace(
            renamed,
            params=params,
            layouts={**renamed.layouts, **self.layouts(chunks)},
            refined=(*renamed.refined, Refined(refine, naive, chunks)),
            counts=counts,
        )

    # -- what must hold ------------------------------------------------------

    def check(self) -> None:
        """Report what cannot be refined."""
        naive, refine = self.naive, self.refine
        if not isinstance(naive.replicas, str):
            self.fail(
                f"{naive.name} is refined by the files' layout, so its count must be a parameter",
                naive.span,
                "write replicas: NAME, and declare NAME under 'params'",
            )
        if naive.process is not None or naive.policy is not None:
            message = f"{naive.name} is loaded inside a process: it has no 'process' or 'policy'"
            self.fail(message, naive.span)
        if len(naive.states) < 2:
            self.fail(f"{naive.name} has no transition to refine", naive.span)
        taken = {CHUNK, PIECE} & (self.spec.components.keys() - {naive.name})
        for name in sorted(taken):
            message = f"{name!r} is derived from {naive.name}, and declared as well"
            self.fail(message, self.spec.components[name].span, "take it out: it is derived")
        for name in COUNTS.values():
            if name in self.spec.params:
                span = self.spec.params[name].span
                self.fail(f"the parameter {name!r} is derived, and declared as well", span)
        self.names(refine.chunk)
        self.stages()
        for state in naive.states[1:]:
            self.waits(state)

    def names(self, states: Sequence[tuple[str, Span]]) -> None:
        """States are listed once."""
        seen: dict[str, Span] = {}
        for name, span in states:
            if name in seen:
                notes = [Note("first listed here", seen[name])]
                self.fail(f"the state {name!r} is listed twice", span, notes=notes)
            seen[name] = span

    def stages(self) -> None:
        """The chunk has the naive stages, in order, then more, then the one that frees it."""
        naive, chunk = self.naive, self.refine.chunk
        if len(chunk) < 3 or len(self.refine.piece) != 2 or len(self.refine.states) != 2:
            self.failed = True  # reported with the document's shape
            return
        wanted = [state.name for state in naive.states]
        given = [name for name, _ in chunk]
        for place, name in enumerate(wanted):
            if place >= len(chunk) or given[place] != name:
                span = chunk[min(place, len(chunk) - 1)][1]
                self.fail(
                    f"the chunk's states begin with those of {naive.name}: {', '.join(wanted)}",
                    span,
                    notes=[Note(f"{name!r} is declared here", naive.states[place].span)],
                )
                return
        if len(chunk) == len(wanted):
            self.fail(
                "the chunk needs a last state of its own, in which its buffer is free",
                chunk[-1][1],
                f"write [{', '.join(given)}, Destroyed]",
            )

    def waits(self, state: State) -> None:
        """Each wait of a naive stage can be carried over."""
        naive, depth = self.naive, self.refine.depth
        for dependency in state.after:
            ref = dependency.ref
            if ref.component == naive.name:
                if ref.state != state.name or ref.index != Index("offset", -1):
                    self.fail(
                        f"{ref} cannot be refined: a stage of {naive.name} may wait for the same "
                        f"stage of the one before, {naive.name}[i-1].{state.name}",
                        ref.span,
                        "bound the buffers with refine: ring",
                    )
                elif depth > 1 and not dependency.schedule:
                    self.fail(
                        f"depth {depth} would give up the order of {ref}, which correctness needs",
                        ref.span,
                        "mark it schedule: true if it is there for speed, or leave out depth",
                    )
            elif ref.index.kind in ("offset", "layout"):
                self.fail(
                    f"{ref} cannot be refined: a chunk is not at one place among the replicas of "
                    f"{ref.component}",
                    ref.span,
                    f"wait for {ref.component}.*.{ref.state}",
                )

    # -- components ----------------------------------------------------------

    def chunk(self) -> Component:
        """The merged component."""
        refine, naive = self.refine, self.naive
        stages = {state.name: state for state in naive.states}
        ring = Dependency(  # the schedule's, not the data's: the stock engine has no ring
            Ref(CHUNK, refine.chunk[-1][0], Index("offset", -refine.ring), refine.ring_span),
            schedule=True,
            reason=f"ring of {refine.ring}",
            bound=True,
        )
        states: list[State] = []
        for place, (name, span) in enumerate(refine.chunk):
            after: list[Dependency] = []
            effects: tuple[Effect, ...] = ()
            if name in stages and place:
                after = [self.carried(name, d) for d in stages[name].after]
                effects = tuple(self.effect(effect) for effect in stages[name].effects)
            if place == 1:
                after.append(ring)
            if place == len(refine.chunk) - 1:
                whole = "tensors" if refine.release == "tensors" else "pieces"
                owner = naive.name if whole == "tensors" else PIECE
                last = (refine.states if whole == "tensors" else refine.piece)[-1][0]
                after = [Dependency(Ref(owner, last, Index("layout", whole), span))]
            states.append(State(name, span, place > 0, tuple(after), effects=effects))
        return Component(CHUNK, refine.span, tuple(states), COUNTS["chunks"], naive.when)

    def effect(self, effect: Effect) -> Effect:
        """A stage's effect; one until a stage of its own tensor lasts until the chunk's."""
        until = effect.until
        if until is None or until.component != self.naive.name:
            return effect
        if until.index != Index("offset", 0):
            return effect
        return replace(effect, until=replace(until, component=CHUNK))

    def carried(self, stage: str, dependency: Dependency) -> Dependency:
        """A wait of the naive stage, at the chunk."""
        ref = dependency.ref
        if ref.component != self.naive.name:
            return dependency
        ref = Ref(CHUNK, stage, Index("offset", -self.refine.depth), ref.span)
        return replace(dependency, ref=ref, bound=dependency.schedule)

    @property
    def ready(self) -> str:
        """The chunk's state in which its bytes are where pieces are copied from."""
        return self.refine.chunk[-2][0]

    def piece(self) -> Component:
        """Tensor ∩ chunk."""
        (first, begin), (last, end) = self.refine.piece
        wait = Dependency(Ref(CHUNK, self.ready, Index("layout", "chunk"), end))
        states = (State(first, begin), State(last, end, aux=True, after=(wait,)))
        return Component(PIECE, self.refine.span, states, COUNTS["pieces"], self.naive.when)

    def tensor(self) -> Component:
        """The refined component itself."""
        (first, begin), (last, end) = self.refine.states
        ref = Ref(PIECE, self.refine.piece[-1][0], Index("layout", "pieces"), end)
        if self.refine.release == "tensors":
            ref = Ref(CHUNK, self.ready, Index("layout", "chunks"), end)
        states = (State(first, begin), State(last, end, after=(Dependency(ref),)))
        return replace(self.naive, states=states)

    # -- references ----------------------------------------------------------

    def rename(self, ref: Ref, where: str) -> Ref | None:
        """A reference to the naive component, as one to the refined ones; None: left out."""
        naive, refine = self.naive, self.refine
        names = [state.name for state in naive.states]
        if ref.component != naive.name or ref.state not in names:
            return ref
        if ref.state in (name for name, _ in refine.states) and ref.state != names[-1]:
            return ref  # already the refined name
        if ref.state == names[-1]:
            return replace(ref, state=refine.states[-1][0])
        if ref.state == names[0]:
            return replace(ref, state=refine.states[0][0])
        if where == "chain":
            return None  # its stand-in is auxiliary
        if where == "after" and ref.index.kind == "all":
            return replace(ref, component=CHUNK)
        self.fail(
            f"{ref} in {where!r}: {naive.name}.{ref.state} is split and merged into "
            f"{CHUNK}.{ref.state}",
            ref.span,
            f"wait for {CHUNK}.*.{ref.state}, or for {naive.name}.*.{refine.states[-1][0]}",
        )
        return None

    # -- layouts -------------------------------------------------------------

    def read(self) -> ChunkMap | None:
        """The chunk map of the model, if one is given and can be read."""
        refine = self.refine
        if refine.model is None:
            return None
        span = refine.model_span or refine.span
        try:
            chunks = cut(read_headers(refine.model), refine.chunk_size, refine.ring)
        except LayoutError as error:
            at = (refine.chunk_size_span or span) if error.code == "CF623" else span
            self.diagnostics.error(error.code, str(error), at, help=error.help)
            return None
        widest, tensor = chunks.widest()
        if refine.release == "tensors" and widest > refine.ring:
            self.diagnostics.error(
                "CF610",
                f"the ring of {refine.ring} is too small for this layout: tensor "
                f"{chunks.shown(tensor)} of {chunks.file(tensor)} spans {widest} chunks of "
                f"{chunks.chunk_size} bytes",
                refine.ring_span,
                help=f"write ring: {widest}, larger chunks, or release: pieces",
            )
        return chunks

    def layouts(self, chunks: ChunkMap | None) -> dict[tuple[str, str], Layout]:
        """The relations of the derived components."""
        refine, span, name = self.refine, self.refine.span, self.naive.name
        exact = chunks is not None and max(chunks.pieces, chunks.tensors) <= MAX_EXACT
        if refine.release == "tensors" and chunks is not None:
            exact = exact and chunks.widest()[0] <= refine.ring
        example = Rows(_ANY, lambda k: (k,))

        def layout(
            owner: str, relation: str, key: str, numbered: str | None, shift: int | None
        ) -> Layout:
            rows = example if chunks is None else chunks.rows[key]
            return Layout(owner, relation, rows, span, True, not exact, numbered, shift)

        if refine.release == "tensors":
            # A tensor is numbered by its last chunk; its first is at most R - 1 before.
            found = [
                layout(CHUNK, "tensors", "chunk.tensors", None, refine.ring - 1),
                layout(name, "chunks", "tensor.chunks", f"that ends in {CHUNK}", 0),
            ]
        else:
            found = [
                layout(CHUNK, "pieces", "chunk.pieces", None, 0),
                layout(CHUNK, "tensors", "chunk.tensors", None, None),
                layout(PIECE, "chunk", "piece.chunk", f"of {CHUNK}", 0),
                layout(name, "pieces", "tensor.pieces", None, None),
                layout(name, "chunks", "tensor.chunks", None, None),
            ]
        return {(v.component, v.relation): v for v in found}
