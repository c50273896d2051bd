"""The schedule of a start: early imports, forks and prespawns at states, the collector's policy,
what is remembered from earlier starts.

What a plan says beyond observing.  The hooks call it around their publishes; it never
raises into the engine, and every way out of it is the engine's own start.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from cfac.runtime import adopt, device
from cfac.runtime.collector import Collector
from cfac.runtime.plan import ParamsUnknown, Plan
from cfac.runtime.session import Place, Session

if TYPE_CHECKING:
    from cfac.runtime.boot import Hooks
    from cfac.runtime.prespawn import Prespawned
    from cfac.runtime.remember import Remembered

_T = TypeVar("_T")


class Schedule:
    """The schedule's state in one process; follows forks with its hooks."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self.collector = Collector()
        self._remembered: Remembered | None = None
        #: the component whose first state began the remembering in this process
        self._remembers: str | None = None
        self._forked_early: dict[str, Any] = {}
        #: the component that this process was forked or prespawned for
        self._early: str | None = None
        #: component -> process name -> the child that waits; of this run
        self._prespawned: dict[str, dict[str, Prespawned]] = {}
        #: the components that the engine forks from here, known in the children, too
        self._forks: set[str] = set()
        #: values that were computed early, until they are taken
        self._carried: dict[str, Any] = {}
        #: transitions that this process has by birth: their places in the engine do not count
        self.inherited: set[str] = set()
        self._claim_role()

    def start(self, component: str, callee: Callable[..., _T], **_: Any) -> Callable[..., _T]:
        """The callee that makes ``component``'s process; a child that is there is adopted."""
        waiting = self._prespawned.get(component) if self.followed else None
        if waiting is not None:
            from cfac.runtime import prespawn

            fall_back = functools.partial(self._prespawn_failed, component)
            return prespawn.adopting(waiting, callee, fall_back)
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
        return forking(callee, functools.partial(self._before_fork, component), fall_back)

    def carry(self, key: str, name: str, value: Callable[[], Any] | None) -> None:
        """Compute a value now that a later place is given; where that fails, it is computed there.

        In a start that is as stock, or observed only, the engine computes it itself.
        """
        if value is None or not self.followed:
            return
        try:
            self._carried[key] = value()
        except Exception as error:
            self.hooks.say(f"{name} carries no {key}: {error!r}; the engine computes it later")

    def take(
        self, name: str, callee: Callable[..., _T], when: int | None = None, **_: Any
    ) -> Callable[..., _T]:
        """The callee that computes what the transition ``name`` takes: not called if it is there.

        Once: who calls it again wants another one.
        """
        key = self.hooks.plan.data["transitions"][name].get("takes")
        if key not in self._carried or not self.hooks.applies(name, "take", when):
            return callee

        def given(*arguments: Any, **keywords: Any) -> Any:
            if key not in self._carried:
                return callee(*arguments, **keywords)
            if self.hooks.session is not None:
                self.hooks.session.record("taken", c=name.partition(".")[0], value=key)
            return self._carried.pop(key)

        return given

    def _before_fork(self, component: str) -> None:
        """The engine is given a context by which it forks the component's processes."""
        self.collector.freeze()
        self._forks.add(component)

    @property
    def followed(self) -> bool:
        """Whether this start follows the spec's schedule, and not the engine's own."""
        return (
            self.hooks.session is not None and not self.hooks.stock and not self.hooks.observe_only
        )

    def work(self, name: str, index: int | None) -> bool:
        """Do the work of an auxiliary state (``does``, ``idle``); whether there is any.

        A module that cannot be imported is no harm: the engine will say so, if it needs it.
        That of a recorded start may not exist in this configuration: only the trace has it.
        """
        entry = self.hooks.plan.data["transitions"].get(name, {})
        modules, to_open = entry.get("imports", ()), entry.get("device")
        when = entry.get("imports_when")
        if when and not self._plan(guess=True).holds(when):
            modules = ()
        if self.hooks.observe_only or not (modules or to_open):
            return False
        recorded = range(*entry.get("recorded", (0, 0)))
        misfit = self._other_torch(entry.get("recorded_torch"))
        for number, module in enumerate(modules):
            if misfit and number in recorded:
                continue
            try:
                importlib.import_module(module)
            except Exception as error:
                text = f"{name}: {module} was not imported early: {error!r}"
                if number not in recorded:
                    self.hooks.say(text)
                elif self.hooks.session is not None:
                    self.hooks.session.record("note", text=text)
        if to_open and self._plan(guess=True).holds(to_open["when"]):
            self._open(name, to_open["kind"], index or 0)
        return True

    def _other_torch(self, recorded: str | None) -> bool:
        """Whether what was recorded was so with a torch for another kind of device.

        Modules for that kind may change torch itself when they are imported.
        """
        built = device.torch_build() if recorded is not None else None
        if built is None or built == recorded:
            return False
        text = f"what was recorded is for a torch built for {recorded}, and this one is for {built}"
        self.hooks.say(f"{text}: it is not imported early. Record a start here")
        return True

    def _open(self, name: str, kind: str, index: int) -> None:
        """Open this process's device; the engine does it itself where that fails."""
        try:
            found = device.named(kind)
            if found is not None:
                device.open_context(found, index)
        except Exception as error:
            self.hooks.say(f"{name}: the device was not opened early: {error!r}")

    def published(self, place: Place) -> None:
        """What the schedule has to do once a state is published."""
        self._apply_policy(place)
        self._remember(place)
        self._publish_birth(place)
        self._begin_children(place.name, place.index)
        self._trim()

    def give_up(self) -> None:
        """The start is as stock from here on: end what began early, close the policy."""
        for component, waiting in self._prespawned.items():
            while waiting:
                self._discard(component, waiting.popitem()[1])
        self._prespawned = {}
        for child in self._forked_early.values():
            child.discard()
        self._forked_early.clear()
        self._carried.clear()
        self.collector.wake()
        if self._remembered is not None and self._remembers is not None:
            self._remembered.close(self._remembers, keep=False)
            self._remembers = None

    def forked(self) -> None:
        """In a forked child: the parent's children are not ours."""
        self._remembers = None
        self._forked_early = {}
        for waiting in self._prespawned.values():
            while waiting:
                waiting.popitem()[1].forget()
        self._prespawned = {}

    def joined(self, session: Session) -> None:
        """This process has joined its run."""
        if adopt.waits(self):
            session.early(True)

    def born(self, component: str) -> None:
        """In a child of multiprocessing: take what exec would have given it."""
        if self._early == component and self.hooks.session is not None:
            self.hooks.session.early(True)  # before its first state: it may die in that one
        process = self.hooks.plan.components[component]["process"]
        if process["strategy"] != "engine":
            from cfac.runtime.interrupts import as_after_exec
            from cfac.runtime.openmp import restore

            as_after_exec()
            restore()

    def _apply_policy(self, place: Place) -> None:
        """Open a component's policy at its first state, close it at its last."""
        plan = self.hooks.plan
        policy = plan.components[place.component].get("policy")
        if place.state == plan.states(place.component)[0]:
            if policy is None or self.hooks.observe_only or not plan.is_known(policy.get("when")):
                self.collector.wake()  # inherited by a fork
            else:
                self.collector.rest()
        if policy is not None and place.state == policy["until"]:
            self.collector.wake()

    def _remember(self, place: Place) -> None:
        """Remember from a process's first component's first state to its last.

        The first of several replicas writes what is new; all of them read.  Nothing is
        exchanged in a root that is a script or a notebook: it is not the engine's.
        """
        entries = (self.hooks.plan.data["engine"] or {}).get("remember")
        if entries is None or not self.followed:
            return
        states = self.hooks.plan.states(place.component)
        try:
            if place.state == states[0] and self._remembers is None:
                if place.component in self.hooks.plan.roots() and self._scripted():
                    return
                self._remembers = place.component
                if self._remembered is None:
                    from cfac.runtime.remember import Remembered

                    self._remembered = Remembered(entries, self._identity())
                self._remembered.open(place.component)
            if place.state == states[-1] and self._remembers == place.component:
                assert self._remembered is not None
                self._remembers = None
                place.session.record("remembered", c=place.label, **self._remembered.counts)
                self._remembered.close(place.component, keep=place.index in (None, 0))
        except OSError as error:
            self.hooks.say(f"this start is not remembered: {error}")

    def _identity(self) -> str:
        """What tells this plan, this engine and this way to start it from others."""
        data = self.hooks.plan.data
        package = sys.modules.get(data["engine"]["package"])
        known = [data["name"], data["hashes"], list(getattr(package, "__path__", ()))]
        return json.dumps([*known, "script"] if self._scripted() else known)

    def _scripted(self) -> bool:
        """Whether the run's root is none of the programs that the spec's parameters name."""
        params = self.hooks.plan.data["params"].items()
        programs = [name for name, param in params if param.get("programs")]
        known = self._plan(guess=True).params
        return bool(programs) and not any(known.get(name) for name in programs)

    def _begin_children(self, name: str, index: int | None) -> None:
        """Begin the children that are to begin at the state ``name``."""
        self._fork_at(name)
        self._prespawn_at(name, index)

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
                birth = functools.partial(self._publish_births, component)
                child = Forked.born(process["name"], birth, self.adopted)
                self._forked_early[component] = child
            finally:
                self._early = None

    def _fall_back(self, component: str, reason: str, who: str | None = None) -> None:
        """The component is started by the engine itself after all: one log line."""
        self.hooks.say(f"{who or component} is started by the engine itself: {reason}")
        if self.hooks.session is not None:
            self.hooks.session.record("fallback", c=component, reason=reason)

    def _unsupported_by_guess(self) -> str | None:
        """Whether the command line already shows a configuration that is not described."""
        return self._plan(guess=True).unsupported()

    def _plan(self, *, guess: bool) -> Plan:
        """The plan with what this process knows of the parameters; ``guess`` the others."""
        plan = Plan.of(self.hooks.plan.data)
        told = adopt.role.params if adopt.role is not None else {}
        plan.params.update({k: v for k, v in told.items() if guess or k in plan.params})
        if self.hooks.session is not None:
            plan.params.update(self.hooks.session.run.params())
        if guess:
            plan.settle()
        return plan

    # -- prespawned children, in their parent -------------------------------------

    def _prespawn_at(self, name: str, index: int | None) -> None:
        """Start the interpreters that are to be there at the state ``name``; once in a run."""
        if not self.followed:
            return
        for component, entry in self.hooks.plan.components.items():
            process = entry["process"] or {}
            here = process.get("start") and process["strategy"] == {"prespawn": name.split(".")}
            if not here or component in self._prespawned:
                continue
            guess = self._plan(guess=True)
            reason = guess.unsupported()
            if reason is not None:
                self._fall_back(component, reason)
                continue
            waiting = self._prespawned[component] = {}
            for child in self._names(guess, component, index):
                try:
                    waiting[child] = self._prespawn(child, component, guess.params)
                except Exception as error:
                    self._fall_back(component, f"{child} could not be prespawned: {error!r}")
                    break

    def _prespawn(self, name: str, component: str, params: dict[str, Any]) -> Prespawned:
        from cfac.runtime import prespawn

        data = self.hooks.plan.data
        role = adopt.Role(data["name"], component, dict(params))
        unfit = functools.partial(self._unfit, component, dict(params))
        return prespawn.Prespawned(name, data["engine"]["package"], role, unfit)

    def _unfit(self, component: str, params: dict[str, Any], changed: Iterable[str]) -> str | None:
        """Why a child that opened its device at its birth is not what the engine would start."""
        told, now = Plan.of(self.hooks.plan.data), self._plan(guess=False)
        told.params.update(params)
        for state in told.births(component):
            to_open = told.transition(component, state).get("device")
            if to_open is None or not told.holds(to_open["when"]):
                continue
            if device.named(to_open["kind"]) is None:
                continue
            if not now.is_known(to_open["when"]):
                return "its device was opened early, and the config says otherwise"
            key = device.too_late(changed)
            if key is not None:
                return f"its device was opened before {key} was set"
        return None

    def _names(self, plan: Plan, component: str, index: int | None) -> list[str]:
        """The process names of a component's children here; ParamsUnknown.

        ``index`` is that of the parent: one with replicas has the child of its own index.
        """
        pattern = plan.components[component]["process"]["name"]
        found = [k for k in plan.indices(component) if index is None or k in (None, index)]
        return [pattern if k is None else pattern.replace("{i}", str(k)) for k in found]

    def _trim(self) -> None:
        """End the children for which the config has no use, once it is known."""
        if not any(self._prespawned.values()):
            return
        plan = self._plan(guess=False)
        for component, waiting in self._prespawned.items():
            try:
                wanted = self._names(plan, component, None)
            except ParamsUnknown:
                continue
            for name in [name for name in waiting if name not in wanted]:
                self._discard(component, waiting.pop(name))

    def _prespawn_failed(
        self, component: str, name: str, reason: str, child: Prespawned | None
    ) -> None:
        indexed = self.hooks.plan.components[component]["replicas"] is not None
        self._fall_back(component, reason, f"{component} ({name})" if indexed else component)
        if child is not None:
            self._discard(component, child)

    def _discard(self, component: str, child: Prespawned) -> None:
        """End a child that is not needed; what it has said does not count."""
        if self.hooks.session is not None:
            self.hooks.session.record("given_up", c=component, child=child.pid)
        child.discard()

    # -- prespawned children, in themselves -----------------------------------------

    def _claim_role(self) -> None:
        """If this process was prespawned for this plan, it is told what to do here."""
        role = adopt.role
        plan = self.hooks.plan
        mine = role is not None and role.plan == plan.name and role.component in plan.components
        if role is not None and mine and role.schedule is None:
            role.schedule, self._early = self, role.component

    def born_early(self) -> None:
        """The engine's package is imported: the states up to the first that is bound in it."""
        assert self._early is not None
        first = self.hooks.plan.states(self._early)[0]
        if self.hooks.join(f"{self._early}.{first}") is None:
            return
        self._begin_children(f"{self._early}.{first}", self.hooks.index_here(self._early))
        self._publish_births(self._early)

    def adopted(self) -> None:
        """The engine has said what this child, forked or prespawned, is to run."""
        if adopt.role is not None:
            adopt.role.waiting = False
        if self.hooks.session is not None:
            self.hooks.session.early(False)

    def _publish_births(self, component: str) -> None:
        """In a child that is there early: the states up to the first bound in the engine."""
        for state in self.hooks.plan.births(component):
            self.hooks.publish(f"{component}.{state}")
        self._inherit(component)

    def born_by_context(self, component: str) -> None:
        """In a forked child that knows its name: it has what its parent had."""
        if component in self._forks and self.followed:
            self._inherit(component)

    def _inherit(self, component: str) -> None:
        """Publish the states that a forked child has by birth (``aliases``)."""
        plan = self.hooks.plan
        names = (plan.components[component]["process"] or {}).get("aliases", ())
        for state in plan.states(component):
            if state in names:
                self.hooks.publish(f"{component}.{state}")
                self.inherited.add(f"{component}.{state}")

    def _publish_birth(self, place: Place) -> None:
        """A process that the engine started itself has its birth states too, without the work."""
        if (
            place.state != self.hooks.plan.states(place.component)[0]
            or self._early == place.component
        ):
            return
        for state in self.hooks.plan.births(place.component):
            name = f"{place.component}.{state}"
            Place(place.session, name, place.index).publish()
            self._begin_children(name, place.index)
