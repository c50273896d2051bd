"""Checks of the schedule constructs: forks, prespawns, work of auxiliary states, policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cfac.compiler.aliases import check_aliases, inherited
from cfac.compiler.diagnostics import Diagnostics, Note, Span
from cfac.compiler.graph import Graph
from cfac.compiler.model import Component, Index, Process, Ref, Spec, State
from cfac.compiler.places import is_written, node_at, span_at, state_options
from cfac.compiler.refs import component_span, index_span, state_span
from cfac.compiler.yamlpos import MapNode

#: Whether a reference resolves, seen from a component; reports where it does not.
Resolve = Callable[[Ref, Component], bool]


def check_process(
    spec: Spec, root: MapNode, component: Component, resolve: Resolve, out: Diagnostics
) -> Component:
    """Check how a component's process comes to be; a reference that cannot be is dropped."""
    process = component.process
    if process is None:
        return component
    at = process.strategy.at
    if at is None:
        _check_bare(spec, root, component, process, out)
    good = at is None or (resolve(at, component) and _check_parent(spec, root, component, at, out))
    _check_places(spec, root, component, process, out)
    if not good:
        process = replace(process, strategy=replace(process.strategy, at=None))
        component = replace(component, process=process)
    return check_aliases(spec, component, process, resolve, out)


def _check_bare(
    spec: Spec, root: MapNode, component: Component, process: Process, out: Diagnostics
) -> None:
    """A bare ``prespawn`` is at the first state of the component that spawns it."""
    path = ("components", component.name, "process", "strategy")
    span = span_at(root, path, process.span)
    if process.strategy.kind != "prespawn" or isinstance(node_at(root, path), MapNode):
        return
    parent = spec.components.get(process.spawned_by or "")
    if process.spawned_by is None:
        message = f"{component.name} has no 'spawned_by', so it cannot be prespawned"
        hint = "add spawned_by: and the component whose process starts it"
        out.error("CF220", message, span, help=hint)
    elif parent is not None and parent is not component:
        each = parent.replicas is not None and component.replicas == parent.replicas
        index = Index("offset", 0) if each else Index()
        first = Ref(parent.name, parent.states[0].name, index, span)
        _check_parent(spec, root, component, first, out)


def _check_parent(
    spec: Spec, root: MapNode, component: Component, at: Ref, out: Diagnostics
) -> bool:
    """A process is begun by the one that spawns it, in a state that somebody publishes."""
    assert component.process is not None
    kind = component.process.strategy.kind
    done, where = {"fork": ("forked", "fork from"), "prespawn": ("prespawned", "prespawn at")}[kind]
    parent, spawner = spec.components[at.component], component.process.spawned_by
    if spawner != parent.name:
        notes = []
        if spawner is not None:
            message = f"{component.name} is spawned by {spawner}, not by {parent.name}"
            notes = [Note("'spawned_by' is here", component.process.span)]
        else:
            message = f"{component.name} has no 'spawned_by', so it cannot be {done}"
        hint = f"write spawned_by: {parent.name}, or {where} a state of the spawning component"
        out.error("CF220", message, component_span(at), notes=notes, help=hint)
        return False
    if parent.replicas is not None and at.index != Index("offset", 0):
        each = component.replicas == parent.replicas
        out.error(
            "CF220",
            f"{at} does not name one parent for each {component.name}",
            index_span(at),
            notes=[Note(f"{parent.name} has replicas: {parent.replicas}", parent.span)],
            help=f"write {parent.name}[i].{at.state}"
            if each
            else f"give {component.name} the same replicas, or {where} one that has none",
        )
        return False
    unbound = not is_written(root, ("bind", f"{parent.name}.{at.state}"))
    if parent.states[0].name == at.state and is_bound(spec, root) and unbound:
        out.error(
            "CF221",
            f"{at} is where {parent.name} starts, and it is not bound: nothing says when to {kind}",
            state_span(at),
            notes=[Note(f"{parent.name} starts here", parent.states[0].span)],
            help=f"bind {parent.name}.{at.state}: publish, or {where} a later state",
        )
        return False
    return True


def _check_places(
    spec: Spec, root: MapNode, component: Component, process: Process, out: Diagnostics
) -> None:
    """A fork takes over at the callee that makes the process, or at the contexts for it.

    A prespawn only at the first.
    """
    path = ("components", component.name, "process")
    written = [kind for kind in ("start", "context") if is_written(root, (*path, kind))]
    body = node_at(root, path)
    keys = {kind: body.key(kind) for kind in written} if isinstance(body, MapNode) else {}
    spans = {kind: key.span if key else process.span for kind, key in keys.items()}
    fork = process.strategy.kind == "fork"
    if fork and len(written) == 2:
        out.error(
            "CF222",
            "a fork has either 'start' or 'context', not both",
            spans["context"],
            notes=[Note("'start' is given here", spans["start"])],
            help="'start' forks as soon as the parent is there; 'context' forks where the engine "
            "starts the process",
        )
    elif fork and not written and is_bound(spec, root):
        out.error(
            "CF222",
            f"{component.name} is forked, but neither 'start' nor 'context' says where the engine "
            "makes its process",
            span_at(root, (*path, "strategy"), process.span),
            help="add start: {in: ..., at: replace_callee, call: context.Process}, or context: "
            "{in: ..., at: replace_callee, call: get_context}",
        )
    elif process.strategy.kind == "prespawn":
        _check_adopted(spec, root, component, process, spans, out)
    elif not fork and node_at(root, (*path, "strategy")) is None:
        for kind, span in spans.items():
            message = f"{kind!r} is of a fork, and {component.name} has no 'strategy'"
            hint = "add strategy: {fork: parent.State}, or remove it"
            if kind == "start":
                message = f"'start' is of a fork or prespawn, and {component.name} has neither"
                hint = "add strategy: {fork: parent.State} or strategy: prespawn, or remove it"
            out.error("CF222", message, span, help=hint)
    elif not fork:
        for kind, span in spans.items():
            at = span_at(root, (*path, "strategy"), process.span)
            message = f"{kind!r} is of a fork, and the strategy of {component.name} is 'engine'"
            note = Note("the strategy is here", at)
            out.error("CF222", message, span, notes=[note], help=f"remove {kind!r}, or fork")
    if fork and "start" in spans and process.name is None:
        out.error(
            "CF222",
            f"{component.name} is forked before the engine names its process: 'name' is missing",
            spans["start"],
            help="give the process's multiprocessing name, as in name: EngineCore",
        )
    if fork and "start" in spans and component.replicas is not None:
        out.error(
            "CF223",
            f"{component.name} has replicas: 'start' forks a single process",
            spans["start"],
            notes=[Note(f"{component.name} is declared here", component.span)],
            help="use 'context': each replica is forked where the engine starts it",
        )


def _check_adopted(
    spec: Spec,
    root: MapNode,
    component: Component,
    process: Process,
    spans: dict[str, Span],
    out: Diagnostics,
) -> None:
    """A prespawned child is adopted where the engine makes its process, by its name."""
    name = component.name
    at = span_at(root, ("components", name, "process", "strategy"), process.span)
    if "context" in spans:
        out.error(
            "CF222",
            f"'context' is of a fork, and {name} is prespawned",
            spans["context"],
            notes=[Note("the strategy is here", at)],
            help="name the callee that makes the process object instead, as in start: "
            "{in: ..., at: replace_callee, call: context.Process}",
        )
    elif "start" not in spans and is_bound(spec, root):
        out.error(
            "CF222",
            f"{name} is prespawned, but no 'start' says where the engine makes its process",
            at,
            help="add start: {in: ..., at: replace_callee, call: context.Process}",
        )
    if "start" in spans and process.name is None:
        out.error(
            "CF222",
            f"{name} is prespawned before the engine names its process: 'name' is missing",
            spans["start"],
            help="give the process's multiprocessing name, as in name: EngineCore"
            if component.replicas is None
            else 'give the processes\' multiprocessing names, as in name: "Worker-{i}"',
        )
    for given in process.names:
        if ("{i}" in given.text) == (component.replicas is not None):
            continue
        out.error(
            "CF222",
            f"{name} is prespawned under the name {given.text!r}, "
            + (
                "but it has replicas: they could not be told apart"
                if component.replicas is not None
                else "but it has no replicas to be numbered"
            ),
            given.span,
            help='write the replica\'s index as {i}, as in "Worker-{i}"'
            if component.replicas is not None
            else "write the whole name",
        )


def check_work(
    root: MapNode, component: Component, state: State, initial: bool, out: Diagnostics
) -> bool:
    """Only auxiliary states that are entered do work; whether it may stay."""
    if not state.works:
        return True
    word = "does" if state.idle_while is None else "idle"
    span = _option(root, component, state, word)
    if initial:
        message = f"{component.name} starts in {state.name!r}: nothing happens to get there"
        hint = f"write {word!r} at a later auxiliary state"
        out.error("CF224", message, span, help=hint)
    elif not state.aux:
        message = f"{component.name}.{state.name} is a stock state: the engine does its work"
        hint = f"add an auxiliary state before it, as in Imported: {{aux: true, {word}: ...}}"
        out.error("CF224", message, span, help=hint)
    return state.aux and not initial


def _option(root: MapNode, component: Component, state: State, word: str) -> Span:
    """The position of an option's key."""
    node = state_options(root, component.name, state.name)
    key = node.key(word) if node is not None else None
    return key.span if key is not None else state.span


def check_policy(component: Component, resolve: Resolve, out: Diagnostics) -> Component:
    """A policy ends at a later state of its own component; else it is dropped."""
    policy = component.policy
    if policy is None:
        return component
    until = policy.until
    same = Index("offset", 0) if component.replicas is not None else Index()
    if until.component != component.name:
        message = f"the policy of {component.name} must end at a state of {component.name}"
        hint = f"as in until: {component.states[-1].name}" if component.states else None
        out.error("CF225", message, component_span(until), help=hint)
    elif not resolve(until, component):
        pass
    elif until.index != same:
        message = f"the policy of each {component.name} ends at a state of its own"
        out.error("CF225", message, index_span(until), help=f"write until: {until.state}")
    elif component.states[0].name == until.state:
        message = f"{component.name} starts in {until.state!r}: the policy would never hold"
        out.error("CF225", message, state_span(until), help="end it at a later state")
    else:
        return component
    return replace(component, policy=None)


def is_bound(spec: Spec, root: MapNode) -> bool:
    """Whether the spec says where its transitions live in an engine."""
    return spec.engine is not None and root.get("bind") is not None


def birth_prefix(spec: Spec, component: Component) -> tuple[State, ...]:
    """The states that a child which is there early reaches by itself, right after its birth.

    Auxiliary states with ``does``, from the first transition on, that wait for nothing
    and are not bound: the runtime does their imports and publishes them.
    """
    process = component.process
    if process is None or process.strategy.kind == "engine" or not process.start:
        return ()
    bound = {b.ref.state for b in spec.bindings if b.ref.component == component.name}
    found: list[State] = []
    for state in component.states[1:]:
        does = state.aux and state.works and state.idle_while is None
        if not does or state.after or state.name in bound:
            break
        found.append(state)
    return tuple(found)


def born_with(spec: Spec, component: Component) -> tuple[State, ...]:
    """The states that a child has before the engine comes to start it."""
    process = component.process
    early = process is not None and process.start
    return (*birth_prefix(spec, component), *(inherited(component) if early else ()))


def check_idle(spec: Spec, graph: Graph, out: Diagnostics) -> None:
    """Idle time is before a later wait (CF330); for an acyclic graph."""
    successors = graph.successors()
    for component, state in spec.transitions():
        ref = state.idle_while
        if ref is None:
            continue
        sources = graph.ids.get((ref.component, ref.state), [])
        reached = set(sources)
        stack = list(sources)
        while stack:
            for node in successors[stack.pop()]:
                if node not in reached:
                    reached.add(node)
                    stack.append(node)
        name = f"{component.name}.{state.name}"
        later = component.states[component.position(state.name) + 1 :]
        ends = {node for s in later for node in graph.ids[component.name, s.name]}
        own = ref.component == component.name and ref.index in (Index(), Index("offset", 0))
        if own or not ends & reached:
            out.error(
                "CF330",
                f"{name} is no idle time: {component.name} does not wait for {ref} later"
                if not own
                else f"{name} is no idle time: {component.name} does not wait for itself",
                ref.span,
                notes=[Note("the state is declared here", state.span)],
                help="name what it waits for meanwhile, or use 'does'"
                if own
                else f"add after: {ref} to a later state of {component.name}, or use 'does'",
            )
        elif set(graph.ids[component.name, state.name]) & reached:
            out.error(
                "CF330",
                f"{name} is no idle time: {ref} comes before it, so there is nothing left to wait "
                "for",
                ref.span,
                notes=[Note("the state is declared here", state.span)],
                help="move the state before the one that waits, or use 'does'",
            )
