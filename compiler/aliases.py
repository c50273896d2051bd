"""``aliases`` of a fork: the stock states that a child inherits with its parent's memory.

``aliases: {core.Constructed: frontend.CommonImported}``: having done what its parent did
until CommonImported, the child is Constructed when it is born, and publishes that itself.
The engine reaches the state's place later all the same; that is no second time.  Where the
process is not forked after all, the place counts, as in stock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cfac.compiler.diagnostics import Diagnostics, Note, did_you_mean
from cfac.compiler.model import Alias, Component, Process, Spec, State
from cfac.compiler.nodes import entries, text_node
from cfac.compiler.refs import own_ref, parse_ref, state_span
from cfac.compiler.yamlpos import MapNode

if TYPE_CHECKING:
    from cfac.compiler.schedule_checks import Resolve


def build_aliases(node: MapNode, owner: str, diagnostics: Diagnostics) -> tuple[Alias, ...]:
    """The ``aliases`` of a process; malformed references are reported and left out."""
    found: list[Alias] = []
    for key, value in entries(node.get("aliases")):
        state, end = own_ref(key, owner, False, diagnostics), text_node(value)
        of = parse_ref(end, diagnostics) if end is not None else None
        if state is not None and of is not None:
            found.append(Alias(state, of))
    return tuple(found)


def inherited(component: Component) -> tuple[State, ...]:
    """The states that a forked child has by birth, in their order."""
    process = component.process
    if process is None or process.strategy.kind != "fork":
        return ()
    names = {alias.state.state for alias in process.aliases}
    return tuple(state for state in component.states if state.name in names)


def check_aliases(
    spec: Spec, component: Component, process: Process, resolve: Resolve, out: Diagnostics
) -> Component:
    """Check a fork's aliases (CF227); those that cannot be are dropped."""
    good = tuple(
        alias for alias in process.aliases if _check(spec, component, process, alias, resolve, out)
    )
    return replace(component, process=replace(process, aliases=good))


def _check(
    spec: Spec,
    component: Component,
    process: Process,
    alias: Alias,
    resolve: Resolve,
    out: Diagnostics,
) -> bool:
    """Whether one alias stands for what the child inherits."""
    ref, of = alias.state, alias.of
    name = component.name
    at = process.strategy.at
    if process.strategy.kind != "fork":
        help_ = "write strategy: {fork: parent.State}, or remove the aliases"
        out.error("CF227", f"{name} is not forked, so it inherits nothing", ref.span, help=help_)
        return False
    if ref.component != name:
        help_ = f"write {name}.{ref.state}"
        out.error("CF227", f"{ref} is no state of {name}", ref.span, help=help_)
        return False
    state = component.state(ref.state)
    if state is None:
        hint = did_you_mean(ref.state, (s.name for s in component.states))
        out.error("CF202", f"{name} has no state {ref.state!r}", state_span(ref), help=hint)
        return False
    if not resolve(of, component) or at is None:
        return False
    parent = spec.components[at.component]
    problem = _problem(spec, component, process, state)
    help_ = "leave it out"
    if problem is not None and "comes before" in problem:
        help_ = "inherit that one, too, or leave it out"
    if of.component != parent.name or of.index != at.index:
        problem = f"{of} is no state of the process that {name} is forked from"
        help_ = f"name a state of {parent.name}, no later than {at}"
    elif parent.position(of.state) > parent.position(at.state):
        problem = f"{name} is forked at {at}, before {of}"
        help_ = f"fork at {of}, or name an earlier state"
    if problem is not None:
        note = Note("declared here", state.span)
        out.error("CF227", f"{ref} is not inherited: {problem}", ref.span, notes=[note], help=help_)
    return problem is None


def _problem(spec: Spec, component: Component, process: Process, state: State) -> str | None:
    """What keeps a child from having a state by birth; None: nothing."""
    name = f"{component.name}.{state.name}"
    if state is component.states[0]:
        return f"{component.name} starts in it"
    if state.aux:
        return "it is auxiliary, and aliases are about states of the stock engine"
    if state.after:
        return f"it waits for {state.after[0].ref}"
    if any((site.value or "") for b in spec.bindings if str(b.ref) == name for site in b.sites):
        return "it is published with a value"
    if any(str(s.at) == name for p in spec.params.values() for s in p.sources if s.at):
        return "a parameter is read there"
    names = {alias.state.state for alias in process.aliases}
    bound = {b.ref.state for b in spec.bindings if b.ref.component == component.name}
    own_work = bool(process.start)  # what a child does by itself, right after its birth
    for before in component.states[1 : component.position(state.name)]:
        if before.name in names:
            own_work = False
            continue
        idle = before.idle_while is not None or before.after or before.name in bound
        if not (own_work and before.aux and before.works and not idle):
            return f"{component.name}.{before.name} comes before it, and is not"
    return None
