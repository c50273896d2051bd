"""The schedule of a start: early imports, forks at states, the collector's policy.

What a plan says beyond observing.  The hooks call it around their publishes; it never
raises into the engine, and every way out of it is the engine's own start.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from cfac.runtime.collector import Collector
from cfac.runtime.plan import Plan
from cfac.runtime.session import Place

if TYPE_CHECKING:
    from cfac.runtime.boot import Hooks

_T = TypeVar("_T")


class Schedule:
    """The schedule's state in one process; follows forks with its hooks."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self.collector = Collector()
        self._forked_early: dict[str, Any] = {}
        #: the component that this process is forked early for
        self._early: str | None = None

    def start(self, component: str, callee: Callable[..., _T], **_: Any) -> Callable[..., _T]:
        """The callee that makes ``component``'s process; a child forked early is adopted."""
        child = self._forked_early.pop(component, None) if self.followed else None
        if child is None:
            return callee
        from cfac.runtime.fork import adopting

        return adopting(child, callee, functools.partial(self._fall_back, component))

    def context(self, component: str, callee: Callable[..., _T], **_: Any) -> Callable[..., _T]:
        """The callee that returns the multiprocessing context of ``component``'s processes."""
        if not self.followed:
            return callee
        from cfac.runtime.fork import forking

        fall_back = functools.partial(self._fall_back, component)
        return forking(callee, self.collector.freeze, fall_back)

    @property
    def followed(self) -> bool:
        """Whether this start follows the spec's schedule, and not the engine's own."""
        return (
            self.hooks.session is not None and not self.hooks.stock and not self.hooks.observe_only
        )

    def imports(self, name: str) -> bool:
        """Do the imports of an auxiliary state (``does``, ``idle``); whether there are any.

        A module that cannot be imported is no harm: the engine will say so, if it needs it.
        """
        modules = self.hooks.plan.data["transitions"].get(name, {}).get("imports", ())
        if self.hooks.observe_only or not modules:
            return False
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception as error:
                self.hooks.say(f"{name}: {module} was not imported early: {error!r}")
        return True

    def published(self, place: Place) -> None:
        """What the schedule has to do once a state is published."""
        self._apply_policy(place)
        self._publish_birth(place)
        self._fork_at(place.name)

    def give_up(self) -> None:
        """The start is as stock from here on: end what was forked early, close the policy."""
        for child in self._forked_early.values():
            child.discard()
        self._forked_early.clear()
        self.collector.wake()

    def forked(self) -> None:
        """In a forked child: the parent's children are not ours."""
        self._forked_early = {}

    def born(self, component: str) -> None:
        """In a child of multiprocessing: take what exec would have given it."""
        process = self.hooks.plan.components[component]["process"]
        if process["strategy"] != "engine":
            from cfac.runtime.openmp import restore

            restore()

    def _apply_policy(self, place: Place) -> None:
        """Open a component's policy at its first state, close it at its last."""
        policy = self.hooks.plan.components[place.component].get("policy")
        if place.state == self.hooks.plan.states(place.component)[0]:
            if policy is None or self.hooks.observe_only:
                self.collector.wake()  # inherited by a fork
            else:
                self.collector.rest()
        if policy is not None and place.state == policy["until"]:
            self.collector.wake()

    def _fork_at(self, name: str) -> None:
        """Fork the components whose process is forked early, at the state ``name``."""
        if not self.followed:
            return
        for component, entry in self.hooks.plan.components.items():
            process = entry["process"] or {}
            if not process.get("start") or process["strategy"] != {"fork": name.split(".")}:
                continue
            from cfac.runtime.fork import Forked, objection

            reason = self._unsupported_by_guess() or objection()
            if reason is not None:
                self._fall_back(component, reason)
                continue
            self.collector.freeze()
            self._early = component  # inherited by the child, which tells it what it is
            try:
                birth = functools.partial(self._prepare_child, component)
                child = Forked.born(process["name"], birth, self._adopted_child)
                self._forked_early[component] = child
            finally:
                self._early = None

    def _fall_back(self, component: str, reason: str) -> None:
        """The component is started by the engine itself after all: one log line."""
        self.hooks.say(f"{component} is started by the engine itself: {reason}")
        if self.hooks.session is not None:
            self.hooks.session.record("fallback", c=component, reason=reason)

    def _unsupported_by_guess(self) -> str | None:
        """Whether the command line already shows a configuration that is not described."""
        guess = Plan.of(self.hooks.plan.data)
        guess.settle()
        return guess.unsupported()

    def _prepare_child(self, component: str) -> None:
        """In a child forked early: the states up to the first that is bound in the engine."""
        if self.hooks.session is not None:
            self.hooks.session.post({"op": "early", "value": True})
        for state in self._birth_states(component):
            self.hooks.publish(f"{component}.{state}")

    def _adopted_child(self) -> None:
        """In a child forked early: the engine has said what it is to run."""
        if self.hooks.session is not None:
            self.hooks.session.post({"op": "early", "value": False})

    def _birth_states(self, component: str) -> list[str]:
        births = []
        for state in self.hooks.plan.states(component)[1:]:
            if not self.hooks.plan.transition(component, state).get("birth"):
                break
            births.append(state)
        return births

    def _publish_birth(self, place: Place) -> None:
        """A process that the engine started itself has its birth states too, without the work."""
        if (
            place.state != self.hooks.plan.states(place.component)[0]
            or self._early == place.component
        ):
            return
        for state in self._birth_states(place.component):
            Place(place.session, f"{place.component}.{state}", place.index).publish()
