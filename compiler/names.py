"""Name resolution: every reference in the spec leads somewhere and gates something.

The result is the spec without what is wrong, so that the graph passes can run on
the rest and report their own errors in the same run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cfac.compiler.diagnostics import Diagnostics, Note, Span, did_you_mean
from cfac.compiler.model import (
    Component,
    Dependency,
    Effect,
    Index,
    MergeGroup,
    Param,
    Ref,
    Scalar,
    Source,
    Spec,
    State,
    Test,
)
from cfac.compiler.nodes import entries
from cfac.compiler.places import check_layouts, each_when, node_at, span_at
from cfac.compiler.refs import component_span, index_span, state_span
from cfac.compiler.schedule_checks import check_policy, check_process, check_work
from cfac.compiler.uses import check_bindings, check_unused
from cfac.compiler.yamlpos import MapNode, describe

_TYPES: dict[str, type] = {"int": int, "str": str, "bool": bool}
_ARTICLE = {"int": "an int", "str": "a str", "bool": "a bool"}


def resolve(spec: Spec, root: MapNode, diagnostics: Diagnostics) -> Spec:
    """``spec`` with every name checked, and without what does not resolve."""
    clean = not diagnostics.errors
    resolver = Resolver(spec, root, diagnostics)
    components = {name: resolver.component(c) for name, c in spec.components.items()}
    params = {name: resolver.param(p) for name, p in spec.params.items()}
    for test in each_when(spec):
        resolver.test(test)
    check_layouts(spec, root, diagnostics)
    chain = [tuple(r for r in step if resolver.plain(r, "chain")) for step in spec.chain]
    whole = all(len(a) == len(b) for a, b in zip(chain, spec.chain, strict=True)) and chain
    merges = resolver.merges()
    bindings = tuple(b for b in spec.bindings if resolver.bind(b.ref))
    resolved = replace(
        spec,
        components=components,
        params=params,
        chain=tuple(chain) if whole else (),
        chain_span=spec.chain_span if whole else None,
        merges=merges,
        bindings=bindings,
    )
    # Completeness looks at the states as written: a wait that did not resolve is a wait.
    failed = [b.ref.component for b in spec.bindings if b not in bindings]
    unclear = frozenset(failed)
    all_known = unclear <= spec.components.keys()
    all_read = len(spec.bindings) == len(entries(root.get("bind")))
    written = replace(spec, bindings=bindings)
    check_bindings(written, root, unclear if all_known and all_read else None, diagnostics)
    if clean and not diagnostics.errors:
        # "Nothing uses this" is only worth saying where everything else was understood.
        check_unused(resolved, diagnostics)
    return resolved


class Resolver:
    """Resolves references against the components of one spec."""

    def __init__(self, spec: Spec, root: MapNode, diagnostics: Diagnostics) -> None:
        self.spec = spec
        self.root = root
        self.diagnostics = diagnostics

    # -- components ----------------------------------------------------------

    def component(self, component: Component) -> Component:
        """A component with its resolvable dependencies and effects only."""
        seen: dict[str, State] = {}
        states: list[State] = []
        for state in component.states:
            if state.name in seen:
                self.diagnostics.error(
                    "CF210",
                    f"the state {state.name!r} is listed twice in {component.name}",
                    state.span,
                    notes=[Note("first listed here", seen[state.name].span)],
                    help="states are ordered and irreversible: each is entered once",
                )
                continue
            seen[state.name] = state
            states.append(self.state(component, state, initial=not states))
        replicas = component.replicas
        if isinstance(replicas, str):
            self.replicas(component, replicas)
        process = component.process
        if process is not None and process.spawned_by is not None:
            if process.spawned_by not in self.spec.components:
                self.unknown_component(process.spawned_by, process.span)
            elif process.spawned_by == component.name:
                message = f"{component.name} cannot be spawned by itself"
                self.diagnostics.error("CF201", message, process.span)
        component = check_process(self.spec, self.root, component, self.ref, self.diagnostics)
        component = check_policy(component, self.ref, self.diagnostics)
        return replace(component, states=tuple(states))

    def replicas(self, component: Component, name: str) -> None:
        """``replicas: NAME`` must be an int parameter."""
        span = span_at(self.root, ("components", component.name, "replicas"), component.span)
        param = self.spec.params.get(name)
        if param is None:
            self.unknown_param(name, span)
        elif param.type != "int":
            self.diagnostics.error(
                "CF212",
                f"'replicas' needs an int parameter, and {name!r} is {_ARTICLE[param.type]}",
                span,
                notes=[Note(f"{name!r} is declared here", param.span)],
            )

    def state(self, component: Component, state: State, *, initial: bool) -> State:
        """A state with its resolvable dependencies and effects only."""
        after = tuple(d for d in state.after if self.dependency(component, state, d))
        if initial and state.after:
            self.diagnostics.error(
                "CF209",
                f"{component.name} starts in {state.name!r}: nothing can make it wait there",
                state.after[0].ref.span,
                help="write 'after' at the next state",
            )
            after = ()
        effects = tuple(effect for effect in state.effects if self.effect(component, effect))
        meanwhile = state.idle_while
        if not check_work(self.root, component, state, initial, self.diagnostics):
            state = replace(state, imports=(), idle_while=None, device=None)
        elif meanwhile is not None and not self.dependency(component, state, Dependency(meanwhile)):
            state = replace(state, idle_while=None)
        return replace(state, after=after, effects=effects)

    def effect(self, component: Component, effect: Effect) -> bool:
        """Whether an effect's end resolves; without it the effect would last for ever."""
        return effect.until is None or self.ref(effect.until, component)

    def dependency(self, component: Component, state: State, dependency: Dependency) -> bool:
        """Whether a dependency resolves and gates something."""
        ref = dependency.ref
        if not self.ref(ref, component):
            return False
        target = self.spec.components[ref.component]
        if target.states[0].name == ref.state:
            self.diagnostics.error(
                "CF209",
                f"{ref} always holds: {ref.component} starts in {ref.state!r}",
                ref.span,
                notes=[Note(f"{ref.component} starts here", target.states[0].span)],
                help="remove it, or wait for a later state",
            )
            return False
        return self.may_hold(component, target, ref)

    def may_hold(self, component: Component, target: Component, ref: Ref) -> bool:
        """Whether the reference is non-empty for some replica of some count."""
        kind, value = ref.index.kind, ref.index.value
        if kind == "offset" and isinstance(target.replicas, int):
            if abs(int(value or 0)) < target.replicas:
                return True
            reason = f"{ref.component} has {target.replicas} replicas"
        elif kind == "layout":
            layout = self.spec.layouts.get((component.name, str(value)))
            if layout is None or layout.derived or not layout.lists or any(layout.lists):
                return True
            reason = f"every list of {component.name}.{value} is empty"
        else:
            return True
        message = f"{ref} is empty for every replica: {reason}"
        self.diagnostics.error("CF208", message, ref.span, help="remove it, or correct the index")
        return False

    # -- references ----------------------------------------------------------

    def ref(self, ref: Ref, waiting: Component | None) -> bool:
        """Whether component, state and index of a reference exist and fit."""
        target = self.spec.components.get(ref.component)
        if target is None:
            self.unknown_component(ref.component, component_span(ref))
            return False
        known = target.state(ref.state) is not None
        if not known:
            names = [state.name for state in target.states]
            hint = did_you_mean(ref.state, names)
            if hint is None and names:
                hint = f"the states of {target.name} are: {', '.join(names)}"
            message = f"{target.name} has no state {ref.state!r}"
            self.diagnostics.error("CF202", message, state_span(ref), help=hint)
        return self.index(ref, target, waiting) and known

    def plain(self, ref: Ref, where: str) -> bool:
        """A reference outside ``after``: there is no waiting replica to be relative to."""
        each = where == "merge" and ref.index == Index("offset", 0)
        if ref.index.kind in ("offset", "layout") and not each:
            self.diagnostics.error(
                "CF206",
                f"'{where}' has no waiting replica that [{_shown(ref)}] could be relative to",
                index_span(ref),
                help=f"write {ref.component}.*.{ref.state} for all replicas",
            )
            return False
        return self.ref(ref, None)

    def index(self, ref: Ref, target: Component, waiting: Component | None) -> bool:
        """Whether the index fits the component's replicas."""
        kind, value = ref.index.kind, ref.index.value
        if target.replicas is None:
            if kind == "none":
                return True
            return self.bad_index(
                ref,
                f"{ref.component} has no replicas, so it takes no index",
                target,
                f"write {ref.component}.{ref.state}",
            )
        if kind == "none":
            return self.bad_index(
                ref,
                f"{ref.component} has replicas: say which",
                target,
                f"use {ref.component}.*.{ref.state} for all of them",
            )
        if kind == "at" and isinstance(target.replicas, int) and int(value or 0) >= target.replicas:
            last = target.replicas - 1
            message = f"{ref.component}[{value}] does not exist: the last is [{last}]"
            note = self.replicas_note(target)
            self.diagnostics.error("CF207", message, index_span(ref), notes=[note])
            return False
        if kind == "offset":
            return self.neighbour(ref, target, waiting)
        if kind == "layout":
            return self.layout(ref, waiting)
        return True

    def neighbour(self, ref: Ref, target: Component, waiting: Component | None) -> bool:
        """``[i-1]`` needs two components that are replicated alike."""
        if waiting is None or waiting.replicas == target.replicas:
            return True
        notes = [self.replicas_note(target)]
        count = "no replicas"
        if waiting.replicas is not None:
            count = f"replicas: {waiting.replicas}"
            notes.append(self.replicas_note(waiting))
        self.diagnostics.error(
            "CF206",
            f"[{_shown(ref)}] needs the same replicas on both sides: {waiting.name} has {count}, "
            f"{target.name} has replicas: {target.replicas}",
            index_span(ref),
            notes=notes,
            help=f"use {ref.component}.*.{ref.state}, or a layout",
        )
        return False

    def layout(self, ref: Ref, waiting: Component | None) -> bool:
        """``[self.relation]`` needs a layout of the waiting component."""
        if waiting is None:
            return True
        relation = str(ref.index.value)
        if (waiting.name, relation) in self.spec.layouts:
            return True
        known = [name for owner, name in self.spec.layouts if owner == waiting.name]
        hint = did_you_mean(relation, known) or f"declare layouts: {waiting.name}.{relation}"
        message = f"{waiting.name} has no relation {relation!r}"
        self.diagnostics.error("CF204", message, index_span(ref), help=hint)
        return False

    def bad_index(self, ref: Ref, message: str, target: Component, hint: str) -> bool:
        """Report an index that does not fit."""
        notes = [] if target.replicas is None else [self.replicas_note(target)]
        self.diagnostics.error("CF205", message, index_span(ref), notes=notes, help=hint)
        return False

    def replicas_note(self, component: Component) -> Note:
        """Where a component's replicas are declared."""
        span = span_at(self.root, ("components", component.name, "replicas"), component.span)
        return Note(f"{component.name} has replicas: {component.replicas}", span)

    def unknown_component(self, name: str, span: Span) -> None:
        """Report a component that does not exist."""
        hint = did_you_mean(name, self.spec.components)
        self.diagnostics.error("CF201", f"unknown component {name!r}", span, help=hint)

    def unknown_param(self, name: str, span: Span) -> None:
        """Report a parameter that does not exist."""
        hint = did_you_mean(name, self.spec.params) or f"declare it under 'params:' as {name}"
        self.diagnostics.error("CF203", f"unknown parameter {name!r}", span, help=hint)

    # -- the rest ------------------------------------------------------------

    def merges(self) -> tuple[MergeGroup, ...]:
        """The groups whose members all resolve; names are unique."""
        seen: dict[str, Span] = {}
        good: list[MergeGroup] = []
        for group in self.spec.merges:
            if group.name in seen:
                self.twice(f"two groups are called {group.name!r}", group.span, seen[group.name])
                continue
            seen[group.name] = group.span
            if all([self.plain(ref, "merge") for ref in group.of]):  # noqa: C419 - report all
                good.append(group)
        return tuple(good)

    def twice(self, message: str, span: Span, first: Span) -> None:
        """Report something that is given twice."""
        self.diagnostics.error("CF210", message, span, notes=[Note("first given here", first)])

    def bind(self, ref: Ref) -> bool:
        """Whether a binding's transition exists (its index is checked elsewhere)."""
        target = self.spec.components.get(ref.component)
        if target is None:
            self.unknown_component(ref.component, component_span(ref))
            return False
        if target.state(ref.state) is None:
            names = [state.name for state in target.states]
            hint = did_you_mean(ref.state, names)
            message = f"{target.name} has no state {ref.state!r}"
            self.diagnostics.error("CF202", message, state_span(ref), help=hint)
            return False
        return True

    def param(self, param: Param) -> Param:
        """A parameter whose default fits its type and whose sources resolve."""
        default = param.default
        node = node_at(self.root, ("params", param.name, "default"))
        if node is not None and not _fits(default, param.type):
            wanted = _ARTICLE[param.type]
            self.diagnostics.error(
                "CF211",
                f"the default of {param.name!r} must be {wanted}, not {describe(node)}",
                node.span,
                notes=[Note(f"{param.name!r} is declared here", param.span)],
            )
        self.sources(param.sources)
        sources = tuple(s for s in param.sources if s.at is None or self.plain(s.at, "at"))
        return replace(param, sources=sources)

    def sources(self, sources: tuple[Source, ...]) -> None:
        """Sources stand in the order in which they come to be known."""
        value = next((source for source in sources if source.value is not None), None)
        if value is None:
            return
        later = next((s for s in sources[sources.index(value) :] if s.argv), None)
        if later is not None:
            self.diagnostics.warning(
                "CF226",
                "this 'value' stands before 'argv', but it is known after it, and replaces it",
                value.span,
                notes=[Note("known from the start", later.span)],
                help="write 'argv' first",
            )

    def test(self, test: Test) -> None:
        """A condition tests a parameter that exists with a value of its type."""
        if not test.subject.startswith("param:"):
            return
        name = test.subject.removeprefix("param:")
        param = self.spec.params.get(name)
        if param is None:
            self.unknown_param(name, test.span)
            return
        message: str | None = None
        if test.op in ("above", "below") and param.type != "int":
            message = f"{test.op!r} compares numbers, and {name!r} is {_ARTICLE[param.type]}"
        elif test.op == "matches" and param.type != "str":
            message = f"'matches' needs a str parameter, and {name!r} is {_ARTICLE[param.type]}"
        elif test.op in ("is", "not", "in"):
            values = test.value if isinstance(test.value, tuple) else (test.value,)
            bad = [v for v in values if v is not None and not _fits(v, param.type)]
            if bad:
                message = f"{name!r} is {_ARTICLE[param.type]} and never equals {bad[0]!r}"
        if message is not None:
            notes = [Note(f"{name!r} is declared here", param.span)]
            self.diagnostics.error("CF219", message, test.span, notes=notes)


def _fits(value: Scalar | Iterable[Scalar], kind: str) -> bool:
    if value is None:
        return kind == "str"
    if kind == "int" and isinstance(value, bool):
        return False
    return isinstance(value, _TYPES[kind])


def _shown(ref: Ref) -> str:
    if ref.index.kind == "layout":
        return f"self.{ref.index.value}"
    offset = int(ref.index.value or 0)
    return "i" if offset == 0 else f"i{offset:+d}"
