"""What of a schedule can be left out where an engine version does not have its places.

``--allow-partial`` leaves out what is there for speed only, and says what is lost:

- an auxiliary state, with the work that it does; who waited for it waits for the state
  before it, and an interval that ended there ends at the state after it;
- a fork or a prespawn: the engine starts the process by itself;
- early imports of modules that are gone;
- a wait that is an order for speed (``schedule: true``);
- deferred work: it is done where the engine does it.

Never left out: stock states and their sites, waits that correctness needs, parameters.
What is left is a spec like any other: it is checked again, and only then compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cfac.codegen.anchors import Tree
from cfac.codegen.places import module_file
from cfac.codegen.sites import version_holds
from cfac.codegen.versions import gone_imports
from cfac.compiler.diagnostics import Diagnostic, Diagnostics, Note
from cfac.compiler.model import (
    PROCESS_KINDS,
    Binding,
    Component,
    Defer,
    Dependency,
    MergeGroup,
    Ref,
    Site,
    Spec,
    State,
    Strategy,
)
from cfac.compiler.schedule_checks import birth_prefix

#: Errors of a site that has no place, or of work that is gone, in this engine.
UNBOUND = frozenset({"CF403", "CF404", "CF405", "CF406", "CF407", "CF408", "CF409", "CF432"})


@dataclass(frozen=True, slots=True)
class Construct:
    """A part of a schedule, and whose it is; of deferred work, its entry."""

    kind: Literal["state", "process", "imports", "order", "defer"]
    component: str = ""
    state: str = ""
    deferred: Defer | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """What the start loses by a construct that is left out, and why it is."""

    lost: str
    because: Diagnostic


@dataclass(slots=True)
class Partial:
    """A spec, and what was left out of it so far."""

    spec: Spec
    tree: Tree
    losses: list[Loss] = field(default_factory=list)

    def leave_out(self, construct: Construct, why: Diagnostic) -> None:
        """Take a construct out of the spec, with all that hangs on it."""
        if construct.deferred is not None:
            self._less_deferred(construct.deferred, why)
            return
        component = self.spec.components[construct.component]
        state = component.state(construct.state)
        if construct.kind == "process":
            self._own_start(component, why)
        elif state is None:
            return  # gone with another one
        elif construct.kind == "state":
            self._no_state(component, state, why)
        elif construct.kind == "imports":
            self._fewer_imports(component, state, gone_imports(state, self.tree), why)
        else:
            self._no_order(component, state, why)

    def _lose(self, lost: str, why: Diagnostic) -> None:
        self.losses.append(Loss(lost, why))

    def _own_start(self, component: Component, why: Diagnostic) -> None:
        """The engine starts the process; what its early start did goes with it."""
        process = component.process
        if process is None or process.strategy.kind == "engine":
            return
        how = {"fork": "forked early", "prespawn": "prespawned"}[process.strategy.kind]
        lost = f"{component.name} is not {how}: the engine starts it in its own time"
        self._lose(lost, why)
        born = birth_prefix(self.spec, component)
        stock = replace(process, strategy=Strategy(), start=(), context=(), aliases=())
        self._put(replace(component, process=stock))
        for state in born:
            self._no_state(self.spec.components[component.name], state, why)

    def _less_deferred(self, entry: Defer, why: Diagnostic) -> None:
        """Without the modules that are gone (CF403); without it at all, if it has no place."""
        package = self.tree.package
        kept = tuple(
            place
            for place in entry.places
            if place.split(".")[0] != package
            or (why.code == "CF403" and module_file(self.tree.root, place.removesuffix(".**")))
        )
        if kept == entry.places:
            return  # a second module of it that is gone: the first error took both
        gone = ", ".join(place for place in entry.places if place not in kept)
        self._lose(f"{entry.kind} {entry.name} is not deferred in {gone}", why)
        smaller = (replace(d, places=kept) if d == entry else d for d in self.spec.defers)
        self.spec = replace(self.spec, defers=tuple(d for d in smaller if d.places))

    def _no_order(self, component: Component, state: State, why: Diagnostic) -> None:
        orders = ", ".join(str(dependency.ref) for dependency in state.after)
        self._lose(f"{component.name}.{state.name} does not wait for {orders}", why)
        self._put_state(component, replace(state, after=()))

    def _fewer_imports(
        self,
        component: Component,
        state: State,
        gone: Sequence[str],
        why: Diagnostic,
    ) -> None:
        kept = tuple(module for module in state.imports if module not in gone)
        name = f"{component.name}.{state.name}"
        if not kept and not _is_used(self.spec, component, state):
            self._no_state(component, state, why)
            return
        part = state.recorded_part
        if part is not None:  # what is gone is the spec's own: the recorded ones only move
            before = sum(module in gone for module in state.imports[: part[0]])
            part = (part[0] - before, part[1] - before)
        self._lose(f"{name} does not import {', '.join(gone)} early", why)
        self._put_state(component, replace(state, imports=kept, recorded_part=part))

    def _no_state(self, component: Component, state: State, why: Diagnostic) -> None:
        name = f"{component.name}.{state.name}"
        lost = [f"early imports ({', '.join(state.imports)})"] if state.imports else []
        lost += [f"the wait for {dependency.ref}" for dependency in state.after]
        self._lose(f"no {name}: {', '.join(lost) or 'only its event'}", why)
        here = (component.name, state.name)
        for child in list(self.spec.components.values()):
            at = child.process.strategy.at if child.process else None
            if at is not None and _key(at) == here:
                self._own_start(child, why)
        for owner, idle in list(self.spec.transitions()):
            if idle.idle_while is not None and _key(idle.idle_while) == here:
                self._no_state(owner, idle, why)
        names = [s.name for s in self.spec.components[component.name].states]
        position = names.index(state.name)
        before = names[position - 1] if position > 1 else None  # a first state is no event
        after = names[position + 1] if position + 1 < len(names) else None
        spec = self.spec
        components = {c.name: _without(c, here, before, after) for c in spec.components.values()}
        self.spec = replace(spec, components=components, merges=tuple(_merges(spec, here)))
        self._rebind()

    def _put(self, component: Component) -> None:
        components = {**self.spec.components, component.name: component}
        self.spec = replace(self.spec, components=components)
        self._rebind()

    def _put_state(self, component: Component, state: State) -> None:
        states = tuple(state if s.name == state.name else s for s in component.states)
        self._put(replace(component, states=states))

    def _rebind(self) -> None:
        """Bind what is there; what waits for nothing any more has no wait."""
        bindings: list[Binding] = []
        for binding in self.spec.bindings:
            state = self.spec.state_of(binding.ref)
            if state is None:
                continue
            sites = binding.sites
            if not state.after:
                sites = tuple(site for site in sites if site.kind != "wait")
            bindings.append(replace(binding, sites=sites))
        self.spec = replace(self.spec, bindings=tuple(bindings))


def narrow(spec: Spec, tree: Tree, version: str, bind: Callable[[Spec], Diagnostics]) -> Partial:
    """The spec without all that has no place in an engine and can be left out.

    ``bind`` tries a spec on the engine.  Errors about what cannot be left out remain.
    """
    partial = Partial(spec, tree)
    while True:
        before = len(partial.losses)
        for error in bind(partial.spec).errors:
            for construct in blamed(partial.spec, version, error):
                partial.leave_out(construct, error)
        if len(partial.losses) == before:
            return partial


def offered(found: Diagnostic, partial: Partial) -> Diagnostic:
    """An error with what ``--allow-partial`` would lose; other diagnostics as they are."""
    lost = [loss.lost for loss in partial.losses if loss.because == found]
    if not lost:
        return found
    notes = (Note(f"--allow-partial leaves it out: {text}") for text in lost)
    return replace(found, notes=(*found.notes, *notes))


def report_losses(partial: Partial, diagnostics: Diagnostics) -> None:
    """One warning for each thing that was left out."""
    for loss in partial.losses:
        why = loss.because
        diagnostics.warning("CF433", f"left out: {loss.lost}", why.span, notes=[Note(why.message)])


def blamed(spec: Spec, version: str, error: Diagnostic) -> list[Construct]:
    """The constructs that an error is about, if all of them can be left out; else none.

    Two sites for one configuration (CF409) are a mistake of the spec in every version.
    """
    if error.code not in UNBOUND or error.span is None:
        return []
    if error.code == "CF432":
        return [
            Construct("imports", component.name, state.name)
            for component, state in spec.transitions()
            if state.span == error.span
        ]
    deferred = [Construct("defer", deferred=d) for d in spec.defers if d.span == error.span]
    if deferred:
        return deferred
    found = [
        construct
        for construct, site in _sites(spec)
        if error.span in (site.span, site.when.span if site.when else None)
        and not (error.code == "CF409" and version_holds(site.when, version, Diagnostics()))
    ]
    return list(dict.fromkeys(c for c in found if c is not None)) if all(found) else []


def _sites(spec: Spec) -> Iterator[tuple[Construct | None, Site]]:
    """Every site, with the construct that goes when it cannot be bound."""
    for binding in spec.bindings:
        for site in binding.sites:
            yield _of_transition(spec, binding.ref, site), site
    for component in spec.components.values():
        process = component.process
        for kind in PROCESS_KINDS if process is not None else ():
            for site in process.of(kind) if process is not None else ():
                yield None if kind == "stop" else Construct("process", component.name), site


def _of_transition(spec: Spec, ref: Ref, site: Site) -> Construct | None:
    state = spec.state_of(ref)
    if state is None or not all(dependency.schedule for dependency in state.after):
        return None
    if state.aux:
        read = {_key(s.at) for param in spec.params.values() for s in param.sources if s.at}
        return None if _key(ref) in read else Construct("state", ref.component, ref.state)
    if site.kind == "wait":
        return Construct("order", ref.component, ref.state)
    return None


def _key(ref: Ref) -> tuple[str, str]:
    return ref.component, ref.state


def _is_used(spec: Spec, component: Component, state: State) -> bool:
    """Whether something else goes by an auxiliary state."""
    refs = [d.ref for _, s in spec.transitions() for d in s.after]
    refs += [
        c.process.strategy.at
        for c in spec.components.values()
        if c.process and c.process.strategy.at
    ]
    refs += [c.policy.until for c in spec.components.values() if c.policy]
    refs += [e.until for _, s in spec.transitions() for e in s.effects if e.until]
    refs += [s.at for param in spec.params.values() for s in param.sources if s.at]
    return bool(state.after) or any(_key(ref) == (component.name, state.name) for ref in refs)


def _without(
    c: Component, here: tuple[str, str], before: str | None, after: str | None
) -> Component:
    """A component when the state ``here`` is gone."""

    def end(ref: Ref | None) -> Ref | None:
        if ref is None or _key(ref) != here:
            return ref
        return replace(ref, state=after) if after else None

    states = tuple(
        replace(
            s,
            after=tuple(_waits(s.after, here, before)),
            effects=tuple(replace(e, until=end(e.until)) for e in s.effects),
        )
        for s in c.states
        if (c.name, s.name) != here
    )
    policy = c.policy
    if policy is not None and _key(policy.until) == here:
        until = end(policy.until) or (before and replace(policy.until, state=before))
        policy = replace(policy, until=until) if until else None
    return replace(c, states=states, policy=policy)


def _waits(
    after: Iterable[Dependency], here: tuple[str, str], before: str | None
) -> Iterator[Dependency]:
    seen: set[str] = set()
    for dependency in after:
        if _key(dependency.ref) == here:
            if before is None:
                continue
            dependency = replace(dependency, ref=replace(dependency.ref, state=before))
        if str(dependency.ref) not in seen:
            seen.add(str(dependency.ref))
            yield dependency


def _merges(spec: Spec, here: tuple[str, str]) -> Iterator[MergeGroup]:
    for group in spec.merges:
        of = tuple(ref for ref in group.of if _key(ref) != here)
        if len(of) > 1:
            yield replace(group, of=of)
