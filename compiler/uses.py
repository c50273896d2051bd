"""Completeness: what is declared is bound and used."""

from __future__ import annotations

from cfac.compiler.diagnostics import Diagnostics, Note
from cfac.compiler.model import Binding, Component, Ref, Spec, State
from cfac.compiler.places import each_when, is_written, may_wait
from cfac.compiler.schedule_checks import birth_prefix, is_bound
from cfac.compiler.split import check_split
from cfac.compiler.yamlpos import MapNode

_Key = tuple[str, str]


def check_bindings(
    spec: Spec, root: MapNode, unclear: frozenset[str] | None, diagnostics: Diagnostics
) -> None:
    """Bindings fit their transitions, and in an engine's spec none is missing.

    ``unclear`` are the components that have a binding whose state is unknown (None:
    any component may); a missing binding is not reported for them.
    """
    bound = {(b.ref.component, b.ref.state): b for b in spec.bindings}
    merged = {(ref.component, ref.state) for group in spec.merges for ref in group.of}
    _one_style(spec, diagnostics)
    check_split(spec, is_bound(spec, root), diagnostics)
    for component in spec.components.values():
        births = birth_prefix(spec, component)
        for number, state in enumerate(component.states):
            key = (component.name, state.name)
            binding = bound.get(key)
            if binding is not None:
                waits = key in merged or may_wait(root, component.name, state.name)
                _check_binding(binding, state, number == 0, waits, diagnostics)
            if number > 0 and is_bound(spec, root) and spec.run_of(component.name) != "local":
                missing = unclear is not None and component.name not in unclear
                if binding is not None or (missing and state not in births):
                    _check_complete(component, state, binding, root, diagnostics)


def _one_style(spec: Spec, diagnostics: Diagnostics) -> None:
    """A spec is bound to Python callables or to an engine, not to both."""
    sites = next((b for b in spec.bindings if b.sites and not b.run), None)
    for binding in spec.bindings:
        if sites is not None and binding.run and not binding.sites:
            diagnostics.error(
                "CF216",
                f"{binding.ref} is bound by 'run' in a spec that is bound to an engine",
                binding.ref.span,
                notes=[Note(f"{sites.ref} is bound to sites in the engine here", sites.ref.span)],
            )


def _check_binding(
    binding: Binding, state: State, initial: bool, may_wait: bool, diagnostics: Diagnostics
) -> None:
    waits, begins = binding.of("wait"), binding.of("begin")
    if initial:
        for site in (*waits, *begins):
            diagnostics.error(
                "CF209",
                f"{binding.ref} is where the component starts: it has no {site.kind!r}",
                site.span,
                help="bind it by 'publish' only, or leave it unbound",
            )
        return
    if waits and not state.after and not may_wait:
        diagnostics.error(
            "CF209",
            f"this wait gates nothing: {binding.ref} has no 'after'",
            waits[0].span,
            notes=[Note("the state is declared here", state.span)],
            help="declare what it waits for, or remove the 'wait'",
        )
    for site in binding.of("publish"):
        if site.at == "process_exit" and state.works:
            diagnostics.error(
                "CF224",
                f"{binding.ref} is its process's end: nothing can be done there",
                site.span,
                notes=[Note("the state is declared here", state.span)],
                help="bind it to a place in the engine, or remove 'does' and 'idle'",
            )
    if waits and begins:
        diagnostics.error(
            "CF217",
            f"{binding.ref} begins where its 'wait' returns: 'begin' must not be bound too",
            begins[0].span,
            notes=[Note("the wait is bound here", waits[0].span)],
            help="remove 'begin'",
        )


def _check_complete(
    component: Component,
    state: State,
    binding: Binding | None,
    root: MapNode,
    diagnostics: Diagnostics,
) -> None:
    name = f"{component.name}.{state.name}"

    def bound(kind: str) -> bool:
        return is_written(root, ("bind", name, kind))

    if binding is None or not (bound("publish") or bound("run")):
        diagnostics.error(
            "CF215",
            f"{name} is not bound: nothing in the engine publishes it",
            state.span if binding is None else binding.ref.span,
            help=f"add bind: {name}: {{publish: ...}}",
        )
    if binding is None or bound("run") or not state.after:
        return
    if not bound("wait") and not bound("begin"):
        diagnostics.error(
            "CF218",
            f"{name} has an 'after', but neither 'wait' nor 'begin' is bound",
            binding.ref.span,
            notes=[Note("it waits here", state.after[0].ref.span)],
            help="bind 'wait' to enforce the order, or 'begin' after the engine's own wait",
        )


def check_unused(spec: Spec, diagnostics: Diagnostics) -> None:
    """Warn of parameters, auxiliary states and relations that nothing uses."""
    used = {str(c.replicas) for c in spec.components.values() if isinstance(c.replicas, str)}
    used |= {test.subject.removeprefix("param:") for test in each_when(spec)}
    for param in spec.params.values():
        if param.name not in used:
            diagnostics.warning(
                "CF213",
                f"the parameter {param.name!r} is not used",
                param.span,
                help="use it in 'replicas' or 'when', or remove it",
            )
    wanted = {(ref.component, ref.state) for ref in _refs(spec)}
    wanted |= {(binding.ref.component, binding.ref.state) for binding in spec.bindings}
    for component, state in spec.transitions():
        key: _Key = (component.name, state.name)
        if state.aux and key not in wanted and not state.effects and not state.works:
            diagnostics.warning(
                "CF214",
                f"the auxiliary state {component.name}.{state.name} is not used: "
                "nothing waits for it, and it is neither bound nor has work or effects",
                state.span,
                help="wait for it, bind it, or remove it",
            )
    relations = {
        (component.name, dependency.ref.index.value)
        for component, state in spec.transitions()
        for dependency in state.after
        if dependency.ref.index.kind == "layout"
    }
    for layout in spec.layouts.values():
        if not layout.derived and (layout.component, layout.relation) not in relations:
            message = f"the layout {layout.component}.{layout.relation} is not used"
            diagnostics.warning("CF604", message, layout.span)


def _refs(spec: Spec) -> list[Ref]:
    found = [dependency.ref for _, state in spec.transitions() for dependency in state.after]
    found += [
        effect.until
        for component in spec.components.values()
        for state in component.states
        for effect in state.effects
        if effect.until is not None
    ]
    found += [s.idle_while for _, s in spec.transitions() if s.idle_while is not None]
    for component in spec.components.values():
        found += [component.fork.ref] if component.fork is not None else []
        found += [component.policy.until] if component.policy is not None else []
    found += [ref for group in spec.merges for ref in group.of]
    found += [s.at for param in spec.params.values() for s in param.sources if s.at is not None]
    return found
