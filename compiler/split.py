"""Split: an earlier state ``carries`` a value that a later place ``takes``.

What the engine computes at one place is computed earlier, where the carrying state is
published (the ``value`` of its sites); the place's callee is then given what was carried
instead of being called.  The value stays in its process, and is inherited by a fork.  Where
it is not there, the engine computes it itself.
"""

from __future__ import annotations

from cfac.compiler.diagnostics import Diagnostics, Note, did_you_mean
from cfac.compiler.model import Binding, Component, Effect, Spec, State
from cfac.compiler.nodes import text_node
from cfac.compiler.yamlpos import MapNode

#: The two sides of a split, as the effects by which the hazard pass knows them.
SIDES = ("carries", "takes")


def build_split(options: MapNode, diagnostics: Diagnostics) -> tuple[Effect, ...]:
    """What a state carries and takes."""
    found: list[Effect] = []
    for word in SIDES:
        node = text_node(options.get(word))
        if node is not None:
            found.append(Effect(word, node.text, None, node.span))
    return tuple(found)


def split_of(state: State, side: str) -> Effect | None:
    """What a state carries, or takes."""
    return next((effect for effect in state.effects if effect.kind == side), None)


def check_split(spec: Spec, bound: bool, out: Diagnostics) -> None:
    """Every value has one state that carries it, one that takes it, and places (CF228)."""
    sides: dict[str, dict[str, tuple[Component, State, Effect]]] = {side: {} for side in SIDES}
    bindings = {(b.ref.component, b.ref.state): b for b in spec.bindings}
    for component, state in spec.transitions():
        for effect in (e for e in state.effects if e.kind in SIDES):
            known, name = sides[effect.kind], str(effect.value)
            if name in known:
                first = known[name]
                message = f"{component.name}.{state.name} {effect.kind} {name!r} too"
                note = Note(f"{first[0].name}.{first[1].name} {effect.kind} it here", first[2].span)
                hint = "give each value a name of its own"
                out.error("CF228", message, effect.span, notes=[note], help=hint)
                continue
            known[name] = component, state, effect
            if bound:
                _check_places(component, state, effect, bindings, out)
    for side, other, verb in (("takes", "carries", "carries"), ("carries", "takes", "takes")):
        for name, (_, _, effect) in sides[side].items():
            if name not in sides[other]:
                hint = did_you_mean(name, sides[other]) or f"write {other}: {name} at a state"
                out.error("CF228", f"no state {verb} {name!r}", effect.span, help=hint)
    for binding in spec.bindings:
        _check_take(spec, binding, out)


def _check_places(
    component: Component,
    state: State,
    effect: Effect,
    bindings: dict[tuple[str, str], Binding],
    out: Diagnostics,
) -> None:
    """What is carried is computed where it is published; what is taken has its place."""
    name = f"{component.name}.{state.name}"
    binding = bindings.get((component.name, state.name))
    if effect.kind == "takes":
        if binding is not None and not binding.of("take"):
            message = f"{name} takes {effect.value!r}, and no place says instead of what"
            hint = "bind it, as in take: {in: ..., at: replace_callee, call: make_config}"
            out.error("CF228", message, effect.span, help=hint)
        return
    for site in binding.of("publish") if binding is not None else ():
        if site.value is None or site.at == "process_exit":
            message = f"{name} carries {effect.value!r}, and nothing computes it here"
            note = Note("declared here", effect.span)
            hint = "give the site a value: the expression that computes it"
            out.error("CF228", message, site.span, notes=[note], help=hint)


def _check_take(spec: Spec, binding: Binding, out: Diagnostics) -> None:
    state = spec.state_of(binding.ref)
    sites = binding.of("take")
    if sites and state is not None and split_of(state, "takes") is None:
        message = f"{binding.ref} takes nothing"
        note = Note("the state is declared here", state.span)
        hint = "write takes: and the value's name at the state, or remove 'take'"
        out.error("CF228", message, sites[0].span, notes=[note], help=hint)
