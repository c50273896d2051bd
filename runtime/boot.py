"""What a patched engine calls: ``publish``, ``begin``, ``wait`` and ``replaced``.

Observation never raises into the engine: one log line, then off.  Only the wait of
an enforced transition may raise, because going on would break the declared order.
A run begins when the root component publishes its first state; children find it in
``CFAC_RUN``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from cfac.runtime.deferred import defer_within, deferred, do_import, later, put_off
from cfac.runtime.errors import ChannelError
from cfac.runtime.inject import Delays
from cfac.runtime.plan import Plan, convert
from cfac.runtime.run import ENVIRONMENT, OFF, Run, create_run
from cfac.runtime.schedule import Schedule
from cfac.runtime.session import Place, Session
from cfac.runtime.trace import current_process_name

if TYPE_CHECKING:
    from cfac.runtime.parts import Together
    from cfac.runtime.recording import Recording

_T = TypeVar("_T")
_Lazy = Callable[[], Any] | None

log = logging.getLogger("cfac")


def attach(plan_path: str) -> Hooks | Together:
    """The hooks of one plan for this process.  Raises where the plan cannot be read."""
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("cfac: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    plan = Plan.read(plan_path)
    if not any("run" in entry for entry in plan.components.values()):
        return Hooks(plan)
    from cfac.runtime.parts import VARIABLES, Together, split

    parts = split(plan.data)
    hooks = {kind: Hooks(Plan.of(part), VARIABLES[kind]) for kind, part in parts.items()}
    return Together(**hooks) if len(hooks) > 1 else next(iter(hooks.values()))


class Hooks:
    """The calls that generated lines make.  One per process and run; follows forks.

    ``variable``: in which environment variable this process's run is named.
    """

    def __init__(self, plan: Plan, variable: str = ENVIRONMENT) -> None:
        self.plan = plan
        self.variable = variable
        #: the run is another program's, and only joined here
        self.joins = variable != ENVIRONMENT
        self.observe_only = os.environ.get("CFAC_OBSERVE") == "1"
        self.delays = Delays.from_environment()
        timeout = os.environ.get("CFAC_WAIT_TIMEOUT")
        self.wait_timeout = float(timeout) if timeout else None
        self._roots = set(plan.roots())
        self.session: Session | None = None
        #: this start is not observed: everything is as in the stock engine
        self.stock = os.environ.get(variable) == OFF
        self._said: set[str] = set()
        self._awaits_birth = False
        self._deferred_outside = False
        self.schedule = Schedule(self)
        records = os.environ.get("CFAC_RECORD") and not self.joins
        self.recording = _recording(plan) if records else None
        #: what the generated calls name: the schedule's
        self.start = self.schedule.start
        self.context = self.schedule.context
        self.take = self.schedule.take
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
            if name in self.schedule.inherited or not self.applies(name, "publish", when):
                return
            self._begin_run_at(name)
            place = self._place(name, index, stamp)
            if place is None:
                return
            if self.recording is not None:
                self.recording.published(place, self.plan.states(place.component)[-1])
            carried = self.plan.transition(place.component, place.state).get("carries")
            if carried is not None:
                self.schedule.carry(carried, name, value)
                value = None
            if self.schedule.work(name, place.index) or self.delays or carried is not None:
                self.delays.before(place.label, place.state)
                stamp = time.monotonic_ns()
            if not self.stock:  # who sees the state may send one at once
                self._mind_signals(place, published=False)
            message = {"op": "set", "c": place.label, "s": place.state}
            self._post_with_value(place.session, name, message, value)
            place.record("publish", stamp)
            self._settle_params(place.session, name, params)
            if not self.stock:
                self._mind_signals(place, published=True)
                self.delays.after(place.label, place.state)
                self.schedule.published(place)

    def _mind_signals(self, place: Place, *, published: bool) -> None:
        """From the root's first state to its last, the owner hears of signals to it."""
        if place.component not in self._roots or self.observe_only:
            return
        from cfac.runtime import interrupts

        last = place.state == self.plan.states(place.component)[-1]
        if last and published:
            interrupts.ignore()
        elif not last and not published:
            interrupts.listen(place.session)

    def _post_with_value(
        self, session: Session, name: str, message: dict[str, Any], value: _Lazy
    ) -> None:
        """Publish; a value that cannot be had, or sent, does not keep the state back."""
        if value is not None:
            try:
                session.post({**message, "v": value()})
                return
            except Exception as error:
                self.say(f"{name} is published without its value: {error!r}")
        session.post(message)

    def begin(self, name: str, index: _Lazy = None, when: int | None = None) -> None:
        """The transition ``name`` begins here (after a wait of the engine's own)."""
        with self._quietly(name):
            if name in self.schedule.inherited or not self.applies(name, "begin", when):
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
            place = self._place(name, index) if self.applies(name, "wait", when) else None
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
            if self.session is None or self.stock:
                return
            pattern = (self.plan.components[name]["process"] or {}).get("name")
            if pattern is None or _has_living_child(pattern):
                self.session.post({"op": "stop", "c": name})

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

    def deferred(self, name: str, callee: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        """A decorator that is applied at the first call of the function it decorates."""
        return deferred(callee) if self._restructures() else callee

    def later(self, name: str, callee: Callable[..., Any], until: str) -> Callable[..., Any]:
        """A callee whose call is put off until the module ``until`` has been imported."""
        return later(callee, until) if self._restructures() else callee

    def now(self, statement: str, names: str, namespace: dict[str, Any]) -> bool:
        """Whether an import ``statement`` is to run where it stands; else `use` runs it."""
        if not self._restructures():
            return True
        put_off(statement, names.split(), namespace)
        return False

    def use(self, statement: str, namespace: dict[str, Any]) -> None:
        """An import that was put off is needed now.  What it raises, it raises here."""
        do_import(statement, namespace)

    def _defer_outside(self) -> None:
        """Defer the decorators in modules that are not the engine's, once per process."""
        entries = (self.plan.data["engine"] or {}).get("deferred", ())
        if not self._deferred_outside and self._restructures():
            self._deferred_outside = True
            for decorator, module in entries:
                defer_within(module, decorator)

    def _restructures(self) -> bool:
        """Whether this process belongs to a start in which work is deferred.

        That of a recording is, although its schedule is the engine's own: what is deferred
        shall not be recorded as needed.
        """
        if self.stock or (self.observe_only and self.recording is None):
            return False
        return self.session is not None or self._run() is not None

    # -- runs -------------------------------------------------------------------

    def _run(self) -> Run | None:
        """The run that this process was started in."""
        return Run.from_environment(self.variable)

    def _begins_run(self, name: str) -> bool:
        component, _, state = name.partition(".")
        return (
            not self.joins and component in self._roots and state == self.plan.states(component)[0]
        )

    def applies(self, name: str, kind: str, number: int | None) -> bool:
        """Whether a site's condition holds, by what is known of this start's parameters."""
        if number is None:
            return True
        if self._begins_run(name):  # nothing is known of the start that would begin here
            return Plan.of(self.plan.data).applies(name, kind, number)
        run = None if self.plan.settled else self._run()
        if run is not None:
            told, known = run.params(), self.plan.params
            self.plan.params = {**known, **told} if self.joins else {**told, **known}
        return self.plan.applies(name, kind, number)

    def _begin_run_at(self, name: str) -> None:
        """The root's first state begins a run: an engine start, even a second one here."""
        if not self._begins_run(name):
            return
        if self.stock and self.session is None and current_process_name() != "MainProcess":
            return  # a helper process of a start that is as stock
        if self.session is not None:
            self.schedule.give_up()
            self.session.close()
        self.session, self.stock = None, True
        os.environ[self.variable] = OFF  # if the run cannot be made, all stay silent
        self.plan = Plan.of(self.plan.data)
        run = create_run(self.plan.data, observe=self.observe_only)
        self.stock = False
        os.environ[self.variable] = run.environment()
        self.session = Session(run)
        log.info("run %s of plan %s (trace in %s)", run.id, self.plan.name, run.folder)
        self._defer_outside()
        if self.plan.params:
            self.session.record("params", values=self.plan.params)
            self.session.post({"op": "params", "values": self.plan.params})

    def _place(self, name: str, index: _Lazy, stamp: int | None = None) -> Place | None:
        """Where an event of ``name`` belongs; None if it is not observed in this process.

        ``stamp`` is when it happened, in ns, if that was before now.
        """
        if self.stock:
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
                    self.say(
                        f"{name} was reached in process {process!r}, not {pattern!r}: not observed"
                    )
                return None
            position = int(match) if match else None
        session = self.join(name)
        if session is None:
            return None
        if entry["replicas"] is None:
            position = None
        elif index is not None:
            position = int(index())
        elif position is None:
            raise ChannelError(f"{component} has replicas, but no index is bound for {state}")
        place = Place(session, name, position)
        self._mark_start(place, stamp)
        return place

    def join(self, name: str) -> Session | None:
        """This process's session; joins the run it was started in."""
        if self.session is None:
            run = self._run()
            if run is None:
                if not self.joins:
                    self.say(
                        f"{name} was reached outside of a run (this way to start the engine "
                        "does not pass the root's first state): not observed"
                    )
                return None
            self.session = Session(run)
            if self.joins:  # who made the run knows what is only a default here
                self.plan.params.update(run.params())
            self._defer_outside()
            self.schedule.joined(self.session)
        return self.session

    def _mark_start(self, place: Place, stamp: int | None) -> None:
        """Record the first state of a component that was forked, not imported, into being.

        So is one whose process has no name: it is known by its first event only.
        """
        if place.label in place.session.started:
            return
        place.session.started.add(place.label)
        first = self.plan.states(place.component)[0]
        if place.state != first and place.component not in self._roots:
            Place(place.session, f"{place.component}.{first}", place.index).publish(stamp)

    def index_here(self, component: str) -> int | None:
        """The replica of ``component`` that this process's name stands for."""
        pattern = (self.plan.components[component]["process"] or {}).get("name") or ""
        match = _match_name(pattern, current_process_name())
        return int(match) if match else None

    def _settle_params(self, session: Session, name: str, params: _Lazy) -> None:
        """Send the values of the parameters that are known once ``name`` is published."""
        here = {k: p for k, p in self.plan.data["params"].items() if name in p["at"]}
        if not here:
            return
        self.plan.settle(names=here)
        if params is not None:
            try:
                found = {key: convert(here[key], value) for key, value in params().items()}
                self.plan.params.update(found)
            except Exception as error:
                self.say(f"parameters at {name} could not be read, early guesses stay: {error!r}")
        session.record("params", values=self.plan.params)
        session.run.tell_params(self.plan.params)
        session.post({"op": "params", "values": self.plan.params})
        reason = self.plan.unsupported()
        if reason is not None:
            self._become_stock(session, reason)

    def _become_stock(self, session: Session, reason: str) -> None:
        """The configuration is declared unsupported: one log line, then all is as in stock."""
        session.record("note", text=f"unsupported: {reason}")
        if self.joins:  # who made the run counts on the order
            component = next(iter(session.started), self.plan.name)
            session.post({"op": "fail", "c": component, "error": f"is unsupported: {reason}"})
            return
        self.schedule.give_up()  # while there is an owner, so that they do not miss it
        session.post({"op": "dissolve", "reason": reason})
        os.environ[self.variable] = OFF
        self.stock = True
        self.say(f"this start is as stock: {reason}")

    # -- trouble ------------------------------------------------------------------

    @contextlib.contextmanager
    def _quietly(self, name: str) -> Iterator[None]:
        """Observation must not hurt the engine: an error costs one event and one log line."""
        try:
            yield
        except Exception as error:
            self.say(f"{name} is not observed: {error!r}")

    def say(self, text: str) -> None:
        """Log a line, once."""
        if text not in self._said:
            self._said.add(text)
            with contextlib.suppress(Exception):
                log.warning("%s", text)

    def _forked(self) -> None:
        """In a forked child: whoever it turns out to be, it starts on its own."""
        if self.session is not None:
            self.session.started.clear()
        self.schedule.forked()
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._awaits_birth:
            self._awaits_birth = True  # children of this child inherit the registration
            util.register_after_fork(self, Hooks._born)

    def _born(self) -> None:
        """A multiprocessing child knows its name now: publish its component's birth."""
        for component, entry in self.plan.components.items():
            pattern = (entry["process"] or {}).get("name")
            if pattern and _match_name(pattern, current_process_name()) is not None:
                with self._quietly("the CPU binding"):
                    self.schedule.born(component)
                self.publish(f"{component}.{entry['states'][0]}")
                with self._quietly(f"what {component} inherits"):
                    self.schedule.born_by_context(component)


def _recording(plan: Plan) -> Recording | None:
    """The recording that CFAC_RECORD asks for."""
    from cfac.runtime import recording

    package = (plan.data["engine"] or {}).get("package")
    return recording.Recording(package) if recording.wanted() else None


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
