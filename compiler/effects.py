"""What transitions do beside their states, and in which process: the terms of `hazards`."""

from __future__ import annotations

from dataclasses import dataclass

from cfac.compiler.model import Component, Effect, Spec, State


@dataclass(frozen=True, slots=True)
class Act:
    """One effect of one transition."""

    component: Component
    state: State
    effect: Effect

    @property
    def key(self) -> tuple[str, str]:
        """The transition."""
        return self.component.name, self.state.name

    @property
    def label(self) -> str:
        """The transition as the spec writes it."""
        index = "" if self.component.replicas is None else "[i]"
        return f"{self.component.name}{index}.{self.state.name}"


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork: an effect of a transition, or the strategy of ``child``, at ``act``.

    ``proxy`` is a transition of the forking component, to tell its replicas by;
    ``at_node``: ``act`` is a transition, too, and not where its component starts.
    """

    act: Act
    proxy: Act
    child: Component | None = None

    @property
    def at_node(self) -> bool:
        """Whether the fork comes after a transition."""
        return self.act.key == self.proxy.key

    @property
    def early(self) -> bool:
        """Whether the child is forked as soon as the parent has published the state."""
        process = self.child.process if self.child is not None else None
        return process is not None and not process.context


def fork_of(spec: Spec, component: Component) -> Fork | None:
    """The fork that makes a component's process, if its strategy is one."""
    strategy = component.process.strategy if component.process is not None else None
    at = strategy.at if strategy is not None and strategy.kind == "fork" else None
    parent = spec.components.get(at.component) if at is not None else None
    state = parent.state(at.state) if parent is not None and at is not None else None
    if at is None or parent is None or state is None or len(parent.states) < 2:
        return None
    act = Act(parent, state, Effect("forks", component.name, None, at.span))
    first = parent.states[1] if state is parent.states[0] else state
    return Fork(act, Act(parent, first, act.effect), component)


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two effects that conflict; for CF502 ``other`` forks, for CF501 and CF504 between a
    write and a read of the environment ``one`` writes, for CF506 ``other`` has to come before.
    ``child`` is the forked component.
    """

    code: str
    one: Act
    other: Act
    child: Component | None = None


def process_of(component: Component) -> str:
    """The component whose process it is (one per replica); empty for the root process."""
    return component.name if component.process is not None else ""


def ancestors(spec: Spec, component: Component) -> set[str]:
    """The processes from which a component's process inherits its environment."""
    found: set[str] = set()
    at: Component | None = component
    while at is not None and at.process is not None:
        at = spec.components.get(at.process.spawned_by or "")
        name = process_of(at) if at is not None else ""
        if name in found:
            break
        found.add(name)
    return found - {component.name}


def aligned(spec: Spec, component: Component, ancestor: Component) -> bool:
    """Whether each replica descends from the replica of ``ancestor`` with its own index.

    A fork of a replica makes the child of the same index (docs/spec.md, Forks); which
    replica the engine itself spawns a process from is not declared.
    """
    at, seen = component, {component.name}
    while at.name != ancestor.name:
        fork = fork_of(spec, at)
        if fork is None or fork.act.component.replicas is None or fork.act.component.name in seen:
            return False
        at = fork.act.component
        seen.add(at.name)
    return at.process is not None and at.replicas is not None


def unborn(act: Act) -> bool:
    """Whether an early forked child may do this before the engine tells it what it is."""
    states = act.component.states
    place = act.component.position(act.state.name)
    process = act.component.process
    own = {alias.state.state for alias in process.aliases} if process is not None else set()
    return all(state.aux or state.name in own for state in states[1 : place + 1])
