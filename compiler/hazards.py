"""Hazards: what transitions do beside their states, in an order that is not safe.

The paper (section 3.3) argues by hand that overlapping is safe; here it is checked from
declared ``effects``.  An effect happens somewhere between its transition's begin and its
publish.  ``holds``, ``starts_threads``, ``initializes`` and ``openmp`` open an interval:
from the transition's begin to the publish of ``until`` (and of the transition itself),
for ever where there is no ``until``; an ``until`` that is empty for a count is met.

Processes: each replica of a component with ``process`` is a process of its own; all
components without one belong to the root process.  What is named by ``reads``,
``writes`` and ``holds`` is one thing for the whole spec, but ``env:KEY`` is a key of one
process, inherited by the processes spawned from it.

A ``strategy: {fork: P.S}`` is a fork of P's process, at the end of the publish of S where
it is early (no ``context``), else somewhere after it.  It is over when P goes on (early),
and when the child's first transition is published.  A replica forks the child of its own
index; a single parent, and the replicas in the root process, all of them.  Until an early
forked child has its first stock transition, it knows the environment that its parent had at
the fork only; and a key that the parent has read by then is read in the child too.

CF501  two accesses of one thing, one of them a write, that may run in parallel;
CF502  a fork that may fall into an open interval of its process (``holds`` does not count);
CF503  two ``holds`` of one thing that may overlap (``together``: of one component, only
       those of one replica);
CF504  an environment key written after it was read; CF505  effects of an initial state;
CF506  a transition that has to be ``before`` an interval of its process, and may not be;
CF507  a value that is taken where it need not have been carried to.

Order is what `ordering` proves for every count, so a spec without findings is safe for
all of them.  Members of one merge group are one transition: it cannot conflict with
itself, but nothing inside it is ordered.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement

from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.effects import (
    Act,
    Fork,
    Hazard,
    aligned,
    ancestors,
    fork_of,
    process_of,
    unborn,
)
from cfac.compiler.graph import Graph, build
from cfac.compiler.hazard_text import Text
from cfac.compiler.hazard_view import SAME, Also, Pair, Rule, View
from cfac.compiler.model import Ref, Spec
from cfac.compiler.ordering import Given, exclusive, given
from cfac.compiler.schedule import INTERVALS

OPENS = ("starts_threads", "initializes", "openmp")
ENV = "env:"


def check_hazards(
    spec: Spec, graph: Graph, ranks: dict[int, int], dropped: list[Ref], out: Diagnostics
) -> None:
    """Report the hazards of ``spec``.

    ``graph`` is the checked one, without the edges of ``dropped``; ``ranks`` gives the
    place in the chain of its stock nodes.
    """
    hazards = find_hazards(spec, graph, dropped)
    if hazards:
        text = Text(spec, graph, ranks)
        out.extend(text.diagnostic(hazard) for hazard in hazards)


def find_hazards(spec: Spec, graph: Graph, dropped: list[Ref] | None = None) -> list[Hazard]:
    """All hazards of ``spec``, by code and by position in the spec."""
    acts = [
        Act(component, state, effect)
        for component in spec.components.values()
        if component.replicas != 0
        for state in component.states
        for effect in state.effects
    ]
    if not acts:
        return []
    initial = [a for a in acts if a.state is a.component.states[0]]
    search = _Search(spec, graph, dropped or [], [a for a in acts if a not in initial])
    found = [Hazard("CF505", act, act) for act in initial]
    found += [*search.accesses(), *search.environment(), *search.inherited()]
    return [*found, *search.forks(), *search.holds(), *search.demands(), *search.splits()]


class _Search:
    """The rules, over all pairs of effects."""

    def __init__(self, spec: Spec, graph: Graph, dropped: list[Ref], acts: list[Act]) -> None:
        self.spec = spec
        self.acts = acts
        self.views: list[View] = []
        # Listing replicas proves a little more; merging single replicas needs it.
        if not any(ref.index.kind == "at" for group in spec.merges for ref in group.of):
            self.views.append(View(spec, build(spec, exact=False).without(dropped)))
        if not self.views or any(node.index is not None for node in graph.nodes):
            self.views.append(View(spec, graph))

    def safe(
        self,
        one: Act,
        other: Act,
        rule: Rule,
        *,
        local: bool = False,
        parts: bool = False,
        also: Also = (),
    ) -> bool:
        """Whether ``rule`` holds for all replicas of both, wherever ``also`` exist too.

        ``local``: within a process.  ``parts``: of the same index only.
        """
        present = one.component, other.component, *also
        if any(exclusive(a, b) for a, b in combinations(present, 2)):
            return True
        own = parts or (local and process_of(one.component) != "")
        return any(view.every(one, other, rule, own=own) for view in self.views)

    def accesses(self) -> Iterator[Hazard]:
        """CF501: reads and writes of what is shared."""
        for accesses in self._accesses(shared=True).values():
            for one, other in combinations_with_replacement(accesses, 2):
                if "writes" in (one.effect.kind, other.effect.kind) and not self.safe(
                    one, other, View.apart(one, other)
                ):
                    yield Hazard("CF501", one, other)

    def environment(self) -> Iterator[Hazard]:
        """CF501 and CF504: environment keys within one process."""
        for accesses in self._accesses(shared=False).values():
            for one, other in combinations_with_replacement(accesses, 2):
                if process_of(one.component) != process_of(other.component):
                    continue
                kinds = {one.effect.kind, other.effect.kind}
                if kinds == {"reads"}:
                    continue
                if kinds == {"writes"}:
                    if not self.safe(one, other, View.apart(one, other), local=True):
                        yield Hazard("CF501", one, other)
                    continue
                writer, reader = (one, other) if one.effect.kind == "writes" else (other, one)
                yield from self._written_first(writer, reader, local=True)

    def inherited(self) -> Iterator[Hazard]:
        """CF501 and CF504: keys read in a process spawned from the one that writes them."""
        for accesses in self._accesses(shared=False).values():
            writers = [a for a in accesses if a.effect.kind == "writes"]
            for reader in (a for a in accesses if a.effect.kind == "reads"):
                above = ancestors(self.spec, reader.component)
                if any(self._writes_own(writer, reader) for writer in writers):
                    continue
                fork = fork_of(self.spec, reader.component)
                for writer in writers:
                    if process_of(writer.component) not in above:
                        continue
                    if fork is not None and fork.early and unborn(reader) and (
                        process_of(writer.component) == process_of(fork.act.component)
                    ):  # fmt: skip
                        if not self._known_at_birth(fork, writer, reader):
                            yield Hazard("CF501", writer, reader, fork.child)
                            continue
                        if self._always_forked(fork, writer, reader):
                            continue
                    local = aligned(self.spec, reader.component, writer.component)
                    yield from self._written_first(writer, reader, local=local)
            for writer in writers:
                yield from self._read_at_birth(writer, accesses)

    def _known_at_birth(self, fork: Fork, writer: Act, reader: Act) -> bool:
        """Whether an early ``fork`` takes what its process writes to the reader."""
        also = (reader.component,)
        if exclusive(writer.component, reader.component):
            return True
        rule = View.precedes(writer, fork.act, also)
        return fork.at_node and self.safe(writer, fork.act, rule, local=True, also=also)

    @staticmethod
    def _always_forked(fork: Fork, writer: Act, reader: Act) -> bool:
        """Whether the forking component exists wherever both do; else the engine spawns."""
        known = given(writer.component, reader.component)
        return given(fork.act.component).tests <= known.tests

    def _read_at_birth(self, writer: Act, accesses: list[Act]) -> Iterator[Hazard]:
        """CF504: a key that a forking parent had read when it forked the writer's process."""
        seen: set[str] = set()
        also: Also = (writer.component,)
        fork = fork_of(self.spec, writer.component)
        while fork is not None and fork.child is not None and fork.child.name not in seen:
            seen.add(fork.child.name)
            also = *also, fork.act.component
            for reader in accesses:
                same = process_of(reader.component) == process_of(fork.act.component)
                if reader.effect.kind != "reads" or not same:
                    continue

                def rule(
                    view: View, pair: Pair, f: Fork = fork, r: Act = reader, a: Also = also
                ) -> bool:
                    return view.forked(f, r, pair, a)

                if not self.safe(reader, fork.proxy, rule, local=True, also=also):
                    yield Hazard("CF504", writer, reader, fork.child)
            fork = fork_of(self.spec, fork.act.component)

    def _writes_own(self, writer: Act, reader: Act) -> bool:
        """Whether a process sets the key itself before it reads it."""
        return process_of(writer.component) == process_of(reader.component) and self.safe(
            writer, reader, View.precedes(writer, reader), local=True
        )

    def _written_first(self, writer: Act, reader: Act, *, local: bool) -> Iterator[Hazard]:
        if not self.safe(writer, reader, View.precedes(writer, reader), local=local):
            late = self.safe(reader, writer, View.precedes(reader, writer), local=local)
            yield Hazard("CF504" if late else "CF501", writer, reader)

    def forks(self) -> Iterator[Hazard]:
        """CF502."""
        points = [Fork(a, a) for a in self.acts if a.effect.kind == "forks"]
        points += [f for c in self.spec.components.values() if (f := fork_of(self.spec, c))]
        for fork in points:
            for act in (a for a in self.acts if a.effect.kind in OPENS):
                if process_of(act.component) == process_of(fork.act.component) and not (
                    self._clear(fork, act)
                ):
                    yield Hazard("CF502", act, fork.act, fork.child)

    def _clear(self, fork: Fork, act: Act) -> bool:
        """Whether the interval of ``act`` is over before ``fork``, or opens after it."""
        also = () if fork.child is None else (fork.child,)

        def rule(view: View, pair: Pair) -> bool:
            if view.forked(fork, act, pair, also):
                return True
            return fork.at_node and view.ended(act, fork.act, pair, also, inclusive=bool(also))

        return self.safe(act, fork.proxy, rule, local=True, also=also)

    def holds(self) -> Iterator[Hazard]:
        """CF503."""
        held: dict[str | None, list[Act]] = {}
        for act in (a for a in self.acts if a.effect.kind == "holds"):
            held.setdefault(act.effect.value, []).append(act)
        for acts in held.values():
            for one, other in combinations_with_replacement(acts, 2):

                def rule(view: View, pair: Pair, one: Act = one, other: Act = other) -> bool:
                    if pair.one == pair.other and pair.kind == SAME:
                        return True  # one transition
                    return view.ended(one, other, pair) or view.ended(other, one, pair.swapped())

                if not self.safe(one, other, rule, parts=_parts(one, other)):
                    yield Hazard("CF503", one, other)

    def demands(self) -> Iterator[Hazard]:
        """CF506."""
        for one in (a for a in self.acts if a.effect.kind == "before"):
            opens = INTERVALS[str(one.effect.value)]
            for act in (a for a in self.acts if a.effect.kind == opens):
                known = given(one.component, act.component)

                def rule(view: View, pair: Pair, known: Given = known) -> bool:
                    return view.before(pair, known)

                same = process_of(act.component) == process_of(one.component)
                if same and not self.safe(one, act, rule, local=True):
                    yield Hazard("CF506", act, one)

    def splits(self) -> Iterator[Hazard]:
        """CF507: a value is known in its process, and in those forked from it once it is."""
        for taker in (a for a in self.acts if a.effect.kind == "takes"):
            for giver in (a for a in self.acts if a.effect.kind == "carries"):
                if giver.effect.value == taker.effect.value and not self._reaches(giver, taker):
                    yield Hazard("CF507", giver, taker)

    def _reaches(self, giver: Act, taker: Act) -> bool:
        """Whether what ``giver`` carries is there when ``taker`` begins."""
        component = taker.component
        also: Also = (taker.component,)
        seen: set[str] = set()
        while process_of(component) != process_of(giver.component):
            fork = fork_of(self.spec, component)
            if fork is None or component.name in seen:
                return False
            seen.add(component.name)
            component, also = fork.act.component, (*also, fork.act.component)
            if process_of(component) == process_of(giver.component):
                rule = View.precedes(giver, fork.act, also)
                return fork.at_node and self.safe(giver, fork.act, rule, local=True, also=also)
        known = given(giver.component, taker.component)

        def before(view: View, pair: Pair) -> bool:
            return view.before(pair, known)

        return self.safe(giver, taker, before, local=True)

    def _accesses(self, *, shared: bool) -> dict[str, list[Act]]:
        """Who reads and writes what; a transition that does both is taken to write."""
        found: dict[str, dict[tuple[str, str], Act]] = {}
        for act in self.acts:
            name = act.effect.value
            if act.effect.kind not in ("reads", "writes") or name is None:
                continue
            if name.startswith(ENV) == shared:
                continue
            known = found.setdefault(name, {})
            if act.key not in known or act.effect.kind == "writes":
                known[act.key] = act
        return {name: list(acts.values()) for name, acts in found.items()}


def _parts(one: Act, other: Act) -> bool:
    """Whether replicas of different index hold different parts, and never conflict."""
    return one.component is other.component and one.effect.together and other.effect.together
