"""What a patched engine calls: ``publish``, ``begin``, ``wait`` and ``replaced``.

Observation never raises into the engine: one log line, then off.  Only the wait of
an enforced transition may raise, because going on would break the declared order.
A run begins when the root component publishes its first state; children find it in
``CFAC_RUN``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from cfac.runtime.collector import Collector
from cfac.runtime.errors import ChannelError
from cfac.runtime.inject import Delays
from cfac.runtime.plan import Plan, convert
from cfac.runtime.run import ENVIRONMENT, OFF, Run, create_run
from cfac.runtime.session import Session
from cfac.runtime.table import label
from cfac.runtime.trace import current_process_name

_T = TypeVar("_T")
_Lazy = Callable[[], Any] | None

log = logging.getLogger("cfac")


def attach(plan_path: str) -> Hooks:
    """The hooks of one plan for this process.  Raises where the plan cannot be read."""
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("cfac: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    return Hooks(Plan.read(plan_path))


class Place:
    """Where an event happens: the session, the component's label and its replica index."""

    def __init__(self, session: Session, name: str, index: int | None) -> None:
        self.session = session
        self.component, _, self.state = name.partition(".")
        self.index = index
        self.label = label(self.component, index)

    def record(self, event: str, t: int | None = None) -> None:
        """Append a begin, wait or publish event to the trace."""
        self.session.record(event, t, c=self.component, i=self.index, s=self.state)


class Hooks:
    """The calls that generated lines make.  One per process; follows forks."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.observe_only = os.environ.get("CFAC_OBSERVE") == "1"
        self.delays = Delays.from_environment()
        timeout = os.environ.get("CFAC_WAIT_TIMEOUT")
        self.wait_timeout = float(timeout) if timeout else None
        self._roots = set(plan.roots())
        self._session: Session | None = None
        #: this start is not observed: everything is as in the stock engine
        self._stock = os.environ.get(ENVIRONMENT) == OFF
        self._said: set[str] = set()
        self._awaits_birth = False
        self._collector = Collector()
        self._forked_early: dict[str, Any] = {}
        #: the component that this process is forked early for
        self._early: str | None = None
        os.register_at_fork(after_in_child=self._forked)

    # -- the four calls -----------------------------------------------------------

    def publish(
        self,
        name: str,
        index: _Lazy = None,
        value: _Lazy = None,
        params: _Lazy = None,
        when: int | None = None,
    ) -> None:
        """The transition ``name`` (``component.State``) has finished.

        ``when`` is the number of the site's condition in the plan, if it has one.
        """
        stamp = time.monotonic_ns()
        with self._quietly(name):
            if not self._applies(name, "publish", when):
                return
            self._begin_run_at(name)
            place = self._place(name, index)
            if place is None:
                return
            if self._import_early(name) or self.delays:
                self.delays.before(place.label, place.state)
                stamp = time.monotonic_ns()
            message = {"op": "set", "c": place.label, "s": place.state}
            self._post_with_value(place.session, name, message, value)
            place.record("publish", stamp)
            self._settle_params(place.session, name, params)
            if not self._stock:
                self._apply_policy(place)
                self.delays.after(place.label, place.state)
                self._publish_birth(place)
                self._fork_at(name)

    def _post_with_value(
        self, session: Session, name: str, message: dict[str, Any], value: _Lazy
    ) -> None:
        """Publish; a value that cannot be had, or sent, does not keep the state back."""
        if value is not None:
            try:
                session.post({**message, "v": value()})
                return
            except Exception as error:
                self._say(f"{name} is published without its value: {error!r}")
        session.post(message)

    def begin(self, name: str, index: _Lazy = None, when: int | None = None) -> None:
        """The transition ``name`` begins here (after a wait of the engine's own)."""
        with self._quietly(name):
            if not self._applies(name, "begin", when):
                return
            place = self._place(name, index)
            if place is not None:
                place.record("begin")

    def wait(self, name: str, index: _Lazy = None, when: int | None = None) -> Any:
        """Wait until ``name`` may begin; returns the awaited value if there is just one.

        Raises ComponentFailed, WaitTimeout or OwnerLost: the order is enforced.
        """
        if self.observe_only:
            return None
        place = None
        with self._quietly(name):
            place = self._place(name, index) if self._applies(name, "wait", when) else None
        if place is None:
            return None
        place.record("wait")
        message = {
            "op": "wait",
            "who": f"{place.label}.{place.state}",
            "transition": name,
            "index": place.index,
        }
        values = place.session.wait(message, self.wait_timeout)
        return values[0] if len(values) == 1 else None

    def stop(self, name: str, **_: Any) -> None:
        """The engine begins to end the processes of component ``name`` by itself."""
        with self._quietly(name):
            if self._session is None or self._stock:
                return
            pattern = (self.plan.components[name]["process"] or {}).get("name")
            if pattern is None or _has_living_child(pattern):
                self._session.post({"op": "stop", "c": name})

    def replaced(
        self,
        name: str,
        callee: Callable[..., _T],
        index: _Lazy = None,
        value: _Lazy = None,
        params: _Lazy = None,
        when: int | None = None,
    ) -> Callable[..., _T]:
        """A callee that is the transition itself: publishes when the call returns."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            result = callee(*arguments, **keywords)
            if hasattr(type(result), "__await__"):  # of the type: a proxy has any attribute
                return finish(result)
            self.publish(name, index, value, params, when)
            return result

        async def finish(awaitable: Any) -> Any:
            result = await awaitable
            self.publish(name, index, value, params, when)
            return result

        return call

    # -- the schedule -------------------------------------------------------------

    def start(self, component: str, callee: Callable[..., _T], **_: Any) -> Callable[..., _T]:
        """The callee that makes ``component``'s process; a child forked early is adopted."""
        child = self._forked_early.pop(component, None) if self._scheduled else None
        if child is None:
            return callee
        from cfac.runtime.fork import adopting

        return adopting(child, callee, functools.partial(self._fall_back, component))

    def context(self, component: str, callee: Callable[..., _T], **_: Any) -> Callable[..., _T]:
        """The callee that returns the multiprocessing context of ``component``'s processes."""
        if not self._scheduled:
            return callee
        from cfac.runtime.fork import forking

        fall_back = functools.partial(self._fall_back, component)
        return forking(callee, self._collector.freeze, fall_back)

    @property
    def _scheduled(self) -> bool:
        """Whether this start follows the spec's schedule, and not the engine's own."""
        return self._session is not None and not self._stock and not self.observe_only

    def _import_early(self, name: str) -> bool:
        """Do the imports of an auxiliary state (``does``, ``idle``); whether there are any.

        A module that cannot be imported is no harm: the engine will say so, if it needs it.
        """
        modules = self.plan.data["transitions"].get(name, {}).get("imports", ())
        if self.observe_only or not modules:
            return False
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception as error:
                self._say(f"{name}: {module} was not imported early: {error!r}")
        return True

    def _apply_policy(self, place: Place) -> None:
        """Open a component's policy at its first state, close it at its last."""
        policy = self.plan.components[place.component].get("policy")
        if place.state == self.plan.states(place.component)[0]:
            if policy is None or self.observe_only:
                self._collector.wake()  # inherited by a fork
            else:
                self._collector.rest()
        if policy is not None and place.state == policy["until"]:
            self._collector.wake()

    def _fork_at(self, name: str) -> None:
        """Fork the components whose process is forked early, at the state ``name``."""
        if not self._scheduled:
            return
        for component, entry in self.plan.components.items():
            process = entry["process"] or {}
            if not process.get("start") or process["strategy"] != {"fork": name.split(".")}:
                continue
            from cfac.runtime.fork import Forked, objection

            reason = self._unsupported_by_guess() or objection()
            if reason is not None:
                self._fall_back(component, reason)
                continue
            self._collector.freeze()
            self._early = component  # inherited by the child, which tells it what it is
            try:
                birth = functools.partial(self._prepare_child, component)
                child = Forked.born(process["name"], birth, self._adopted_child)
                self._forked_early[component] = child
            finally:
                self._early = None

    def _fall_back(self, component: str, reason: str) -> None:
        """The component is started by the engine itself after all: one log line."""
        self._say(f"{component} is started by the engine itself: {reason}")
        if self._session is not None:
            self._session.record("fallback", c=component, reason=reason)

    def _unsupported_by_guess(self) -> str | None:
        """Whether the command line already shows a configuration that is not described."""
        guess = Plan.of(self.plan.data)
        guess.settle()
        return guess.unsupported()

    def _prepare_child(self, component: str) -> None:
        """In a child forked early: the states up to the first that is bound in the engine."""
        if self._session is not None:
            self._session.post({"op": "early", "value": True})
        for state in self._birth_states(component):
            self.publish(f"{component}.{state}")

    def _adopted_child(self) -> None:
        """In a child forked early: the engine has said what it is to run."""
        if self._session is not None:
            self._session.post({"op": "early", "value": False})

    def _birth_states(self, component: str) -> list[str]:
        births = []
        for state in self.plan.states(component)[1:]:
            if not self.plan.transition(component, state).get("birth"):
                break
            births.append(state)
        return births

    def _publish_birth(self, place: Place) -> None:
        """A process that the engine started itself has its birth states too, without the work."""
        if place.state != self.plan.states(place.component)[0] or self._early == place.component:
            return
        for state in self._birth_states(place.component):
            birth = Place(place.session, f"{place.component}.{state}", place.index)
            place.session.post({"op": "set", "c": birth.label, "s": state})
            birth.record("publish")

    # -- runs -------------------------------------------------------------------

    def _begins_run(self, name: str) -> bool:
        component, _, state = name.partition(".")
        return component in self._roots and state == self.plan.states(component)[0]

    def _applies(self, name: str, kind: str, number: int | None) -> bool:
        """Whether a site's condition holds, by what is known of this start's parameters."""
        if number is None:
            return True
        if self._begins_run(name):  # nothing is known of the start that would begin here
            return Plan.of(self.plan.data).applies(name, kind, number)
        run = None if self.plan.settled else Run.from_environment()
        if run is not None:
            self.plan.params = {**run.params(), **self.plan.params}
        return self.plan.applies(name, kind, number)

    def _begin_run_at(self, name: str) -> None:
        """The root's first state begins a run: an engine start, even a second one here."""
        if not self._begins_run(name):
            return
        if self._session is not None:
            self._session.close()
        self._session, self._stock = None, True
        os.environ[ENVIRONMENT] = OFF  # if the run cannot be made, all stay silent
        self.plan = Plan.of(self.plan.data)
        run = create_run(self.plan.data, observe=self.observe_only)
        self._stock = False
        os.environ[ENVIRONMENT] = run.environment()
        self._session = Session(run)
        log.info("run %s of plan %s (trace in %s)", run.id, self.plan.name, run.folder)
        if self.plan.params:
            self._session.record("params", values=self.plan.params)
            self._session.post({"op": "params", "values": self.plan.params})

    def _place(self, name: str, index: _Lazy) -> Place | None:
        """Where an event of ``name`` belongs; None if it is not observed in this process."""
        if self._stock:
            return None
        component, _, state = name.partition(".")
        entry = self.plan.components[component]
        position: int | None = None
        pattern = (entry["process"] or {}).get("name")
        if pattern is not None:
            match = _match_name(pattern, current_process_name())
            if match is None:
                if state != entry["states"][0]:
                    process = current_process_name()
                    self._say(
                        f"{name} was reached in process {process!r}, not {pattern!r}: not observed"
                    )
                return None
            position = int(match) if match else None
        session = self._join(name)
        if session is None:
            return None
        if entry["replicas"] is None:
            position = None
        elif index is not None:
            position = int(index())
        elif position is None:
            raise ChannelError(f"{component} has replicas, but no index is bound for {state}")
        place = Place(session, name, position)
        self._mark_start(place)
        return place

    def _join(self, name: str) -> Session | None:
        """This process's session; joins the run it was started in."""
        if self._session is None:
            run = Run.from_environment()
            if run is None:
                self._say(
                    f"{name} was reached outside of a run (this way to start the engine "
                    "does not pass the root's first state): not observed"
                )
                return None
            self._session = Session(run)
        return self._session

    def _mark_start(self, place: Place) -> None:
        """Record the first state of a component that was forked, not imported, into being."""
        if place.label in place.session.started:
            return
        place.session.started.add(place.label)
        first = self.plan.states(place.component)[0]
        if place.state != first and place.component not in self._roots:
            birth = Place(place.session, f"{place.component}.{first}", place.index)
            place.session.post({"op": "set", "c": birth.label, "s": first})
            birth.record("publish")

    def _settle_params(self, session: Session, name: str, params: _Lazy) -> None:
        """Send the values of the parameters that are known once ``name`` is published."""
        here = {k: p for k, p in self.plan.data["params"].items() if name in p["at"]}
        if not here:
            return
        self.plan.settle()
        if params is not None:
            try:
                found = {key: convert(here[key], value) for key, value in params().items()}
                self.plan.params.update(found)
            except Exception as error:
                self._say(f"parameters at {name} could not be read, early guesses stay: {error!r}")
        session.record("params", values=self.plan.params)
        session.run.tell_params(self.plan.params)
        session.post({"op": "params", "values": self.plan.params})
        reason = self.plan.unsupported()
        if reason is not None:
            self._become_stock(session, reason)

    def _become_stock(self, session: Session, reason: str) -> None:
        """The configuration is declared unsupported: one log line, then all is as in stock."""
        session.record("note", text=f"unsupported: {reason}")
        session.post({"op": "dissolve", "reason": reason})
        os.environ[ENVIRONMENT] = OFF
        self._stock = True
        for child in self._forked_early.values():
            child.discard()
        self._forked_early.clear()
        self._collector.wake()
        self._say(f"this start is as stock: {reason}")

    # -- trouble ------------------------------------------------------------------

    @contextlib.contextmanager
    def _quietly(self, name: str) -> Iterator[None]:
        """Observation must not hurt the engine: an error costs one event and one log line."""
        try:
            yield
        except Exception as error:
            self._say(f"{name} is not observed: {error!r}")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            with contextlib.suppress(Exception):
                log.warning("%s", text)

    def _forked(self) -> None:
        """In a forked child: whoever it turns out to be, it starts on its own."""
        if self._session is not None:
            self._session.started.clear()
        self._forked_early = {}
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._awaits_birth:
            self._awaits_birth = True  # children of this child inherit the registration
            util.register_after_fork(self, Hooks._born)

    def _born(self) -> None:
        """A multiprocessing child knows its name now: publish its component's birth."""
        for component, entry in self.plan.components.items():
            pattern = (entry["process"] or {}).get("name")
            if pattern and _match_name(pattern, current_process_name()) is not None:
                if entry["process"]["strategy"] != "engine":
                    self._restore_binding()
                self.publish(f"{component}.{entry['states'][0]}")

    def _restore_binding(self) -> None:
        """What exec would have given a child, a forked one must take by itself."""
        with self._quietly("the CPU binding"):
            from cfac.runtime.openmp import restore

            restore()


def _has_living_child(pattern: str) -> bool:
    """Whether a child process of that name lives.

    Looks at the sentinel, which closes a moment before a killed child can be waited
    for: an engine that stops *because* a child died must not pass for one that ends it.
    """
    from multiprocessing import active_children
    from multiprocessing.connection import wait

    children = [
        child for child in active_children() if _match_name(pattern, child.name) is not None
    ]
    return any(not wait([child.sentinel], timeout=0) for child in children)


def _match_name(pattern: str, name: str) -> str | None:
    """The replica index in a process name (empty if the pattern has none); None: no match."""
    before, placeholder, after = pattern.partition("{i}")
    expression = re.escape(before) + (r"(\d+)" if placeholder else "()") + re.escape(after)
    match = re.fullmatch(expression, name)
    return match.group(1) if match else None
