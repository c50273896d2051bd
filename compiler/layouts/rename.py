"""Rewrites every reference of a spec: step 3 of a refinement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cfac.compiler.model import Component, Ref, Spec, State

#: A reference and where it stands (``after``, ``until``, ``chain`` …); None leaves it out.
Renaming = Callable[[Ref, str], Ref | None]


def rename_refs(spec: Spec, rename: Renaming) -> Spec:
    """``spec`` with every reference renamed."""
    return replace(
        spec,
        components={name: _component(c, rename) for name, c in spec.components.items()},
        params={
            name: replace(
                param,
                sources=tuple(
                    source if source.at is None else replace(source, at=rename(source.at, "at"))
                    for source in param.sources
                ),
            )
            for name, param in spec.params.items()
        },
        chain=tuple(
            kept
            for step in spec.chain
            if (kept := tuple(r for ref in step if (r := rename(ref, "chain")) is not None))
        ),
        merges=tuple(
            replace(group, of=tuple(r for ref in group.of if (r := rename(ref, "merge"))))
            for group in spec.merges
        ),
        bindings=tuple(
            replace(binding, ref=ref)
            for binding in spec.bindings
            if (ref := rename(binding.ref, "bind")) is not None
        ),
    )


def _component(component: Component, rename: Renaming) -> Component:
    process, policy = component.process, component.policy
    if process is not None and process.strategy.at is not None:
        at = rename(process.strategy.at, "strategy")
        process = replace(process, strategy=replace(process.strategy, at=at))
    if policy is not None:
        policy = replace(policy, until=rename(policy.until, "until") or policy.until)
    states = tuple(_state(state, rename) for state in component.states)
    return replace(component, states=states, process=process, policy=policy)


def _state(state: State, rename: Renaming) -> State:
    return replace(
        state,
        after=tuple(
            replace(dependency, ref=ref)
            for dependency in state.after
            if (ref := rename(dependency.ref, "after")) is not None
        ),
        effects=tuple(
            effect
            if effect.until is None
            else replace(effect, until=rename(effect.until, "until") or effect.until)
            for effect in state.effects
        ),
        idle_while=None if state.idle_while is None else rename(state.idle_while, "while"),
    )
