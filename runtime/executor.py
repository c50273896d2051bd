"""Running a spec whose transitions are Python callables (``cfac run``).

A thread, process or coroutine per component replica; a bounded pool could starve a
graph whose early nodes hold the slots (DESIGN section 5).  A merged group is run by
its first member's component: it starts when the united waits hold and publishes all
members at its end.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cfac.runtime.channel import Channel
from cfac.runtime.client import Client
from cfac.runtime.errors import ChannelError, ComponentFailed
from cfac.runtime.inject import Delays
from cfac.runtime.plan import Plan, split_label
from cfac.runtime.run import ENVIRONMENT, Run, create_run
from cfac.runtime.table import Key, label
from cfac.runtime.trace import TraceWriter


@dataclass(frozen=True, slots=True)
class Step:
    """What a callable may take as its one argument: who runs, and the awaited values."""

    component: str
    index: int | None
    state: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: the run, and the errors by component label (empty: all is well)."""

    run: Run
    errors: dict[str, BaseException | str]


@dataclass(frozen=True, slots=True)
class Member:
    """One transition instance."""

    component: str
    index: int | None
    state: str

    @property
    def key(self) -> Key:
        """Its key in the state table."""
        return (label(self.component, self.index), self.state)


@dataclass(frozen=True, slots=True)
class Work:
    """What one component does next: wait for ``needs``, run ``members``, publish them."""

    needs: list[Key]
    members: list[Member]


def schedule(plan: Plan) -> dict[str, list[Work]]:
    """Component label -> its work in order, merged groups resolved."""
    leaders: dict[Key, list[Member]] = {}
    for group in plan.data["groups"].values():
        meant = [
            (index, Member(reference["component"], index, reference["state"]))
            for reference in group["of"]
            for index in _meant(plan, reference)
        ]
        parts = {index if group["each"] else None for index, _ in meant}
        for part in parts:
            members = [member for index, member in meant if not group["each"] or index == part]
            ordered = _in_order(plan, members)
            leaders.update((member.key, ordered) for member in ordered)
    found: dict[str, list[Work]] = {}
    for component, index in plan.instances():
        work = []
        for state in plan.states(component)[1:]:
            member = Member(component, index, state)
            group = leaders.get(member.key, [member])
            if group[0].component == component and group[0].index == index:
                if group[0].state == state:
                    work.append(Work(_united(plan, group), group))
            else:
                work.append(Work([member.key], []))
        found[label(component, index)] = work
    return found


def _meant(plan: Plan, reference: dict[str, Any]) -> list[int | None]:
    kind, value = reference["index"]
    return [i for i in plan.indices(reference["component"]) if kind != "at" or i == value]


def _before(plan: Plan, member: Member) -> list[Key]:
    """All that a transition needs: its dependencies and its component's state before."""
    states = plan.states(member.component)
    position = states.index(member.state)
    own = [(member.key[0], states[position - 1])] if position > 1 else []
    return own + plan.needs(f"{member.component}.{member.state}", member.index)


def _united(plan: Plan, members: list[Member]) -> list[Key]:
    inside = {member.key for member in members}
    needs = (need for member in members for need in _before(plan, member))
    return list(dict.fromkeys(need for need in needs if need not in inside))


def _in_order(plan: Plan, members: list[Member]) -> list[Member]:
    """The members so that each comes after those it needs (the compiler proved it can)."""
    waiting = {member.key: member for member in members}
    ordered: list[Member] = []
    while waiting:
        ready = [m for m in waiting.values() if not set(_before(plan, m)) & waiting.keys()]
        if not ready:
            raise ChannelError("a merged group needs itself: check the spec")
        ordered += ready
        for member in ready:
            del waiting[member.key]
    return ordered


def find_callable(plan: Plan, member: Member) -> Callable[..., Any] | None:
    """The callable bound to a transition; None if nothing is bound.

    ChannelError if the bound name cannot be imported.
    """
    target = plan.transition(member.component, member.state).get("run")
    if target is None:
        return None
    module_name, _, qualname = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        name = f"{member.component}.{member.state}"
        raise ChannelError(f"{name} runs {target!r}, which cannot be imported: {error}") from error
    return found  # type: ignore[no-any-return]


class Worker:
    """Does one component's work over a channel, recording the trace."""

    def __init__(self, plan: Plan, channel: Channel, trace: TraceWriter) -> None:
        self.plan = plan
        self.channel = channel
        self.trace = trace
        self.delays = Delays.from_environment()
        #: the last state published
        self.reached: str | None = None

    def start(self, who: str) -> None:
        """Publish the component's first state."""
        self._publish(Member(*split_label(who), self.plan.states(split_label(who)[0])[0]), None)

    def run(self, who: str, works: list[Work]) -> None:
        """Do all the work of component ``who``."""
        self.start(who)
        for work in works:
            self._before(who, work)
            values = self.channel.wait_states(work.needs, who=self._name(who, work))
            for member, call in self._calls(work, values):
                result = call()
                self._publish_after(work, member, result)
            self._publish_group(work)

    async def run_async(self, who: str, works: list[Work]) -> None:
        """Do all the work of component ``who`` as a coroutine."""
        self.start(who)
        for work in works:
            self._before(who, work)
            name = self._name(who, work)
            values = await self.channel.wait_states_async(work.needs, who=name)
            for member, call in self._calls(work, values):
                result = call()
                if inspect.isawaitable(result):
                    result = await result
                self._publish_after(work, member, result)
            self._publish_group(work)

    def _before(self, who: str, work: Work) -> None:
        self._results: dict[Key, Any] = {}
        for member in work.members:
            self._record("wait", member)

    def _name(self, who: str, work: Work) -> str:
        return f"{who}.{work.members[0].state}" if work.members else who

    def _calls(self, work: Work, values: list[Any]) -> Any:
        named = {f"{c}.{s}": v for (c, s), v in zip(work.needs, values, strict=True)}
        for member in work.members:
            self._record("begin", member)
        for member in work.members:
            function = find_callable(self.plan, member)
            step = Step(member.component, member.index, member.state, named)
            if function is None:
                yield member, lambda: None
            elif inspect.signature(function).parameters:
                yield member, functools.partial(function, step)
            else:
                yield member, function

    def _publish_after(self, work: Work, member: Member, result: Any) -> None:
        if len(work.members) == 1:
            self._publish(member, result)
        else:
            self._results[member.key] = result

    def _publish_group(self, work: Work) -> None:
        if len(work.members) > 1:
            for member in work.members:
                self._publish(member, self._results.get(member.key))

    def _publish(self, member: Member, value: Any) -> None:
        self.delays.before(member.key[0], member.state)
        self._record("publish", member)
        self.channel.set_state(*member.key, value)
        self.reached = member.state
        self.delays.after(member.key[0], member.state)

    def _record(self, event: str, member: Member) -> None:
        self.trace.write(event, c=member.component, i=member.index, s=member.state)


def run_plan(plan: Plan, search_path: str | None = None) -> Outcome:
    """Run every component of a plan to its last state.

    ``search_path`` is put in front of ``sys.path`` for the bound callables.  Raises
    ChannelError where a callable cannot be found, before anything is started.
    """
    if search_path is not None:
        sys.path.insert(0, search_path)
    plan.settle()
    works = schedule(plan)
    for member in [m for work in works.values() for w in work for m in w.members]:
        find_callable(plan, member)
    transport = plan.data["transport"]
    run = create_run(plan.data, owner=transport == "process")
    trace = TraceWriter(run.folder, "cfac run")
    try:
        trace.write("params", values=plan.params)
        if transport == "process":
            return Outcome(run, _run_processes(plan, run, works, search_path))
        runner = _run_threads if transport == "thread" else _run_coroutines
        return Outcome(run, runner(plan, trace, works))
    finally:
        trace.close()


def _record_failure(trace: TraceWriter, who: str, state: str | None, error: BaseException) -> None:
    """Without an owner process, the failing component writes its own failure down."""
    trace.write("failed", c=who, s=state, cause=f"{type(error).__name__}: {error}")


def _run_threads(
    plan: Plan, trace: TraceWriter, works: dict[str, list[Work]]
) -> dict[str, BaseException | str]:
    errors: dict[str, BaseException | str] = {}

    def drive(who: str) -> None:
        worker = Worker(plan, channel, trace)
        try:
            worker.run(who, works[who])
        except ComponentFailed as error:
            errors.setdefault(who, error)
        except BaseException as error:  # SystemExit too would leave the others waiting
            errors[who] = error
            channel.fail(who, error)
            _record_failure(trace, who, worker.reached, error)

    with Channel("thread") as channel:
        threads = [threading.Thread(target=drive, args=(who,), name=who) for who in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return errors


def _run_coroutines(
    plan: Plan, trace: TraceWriter, works: dict[str, list[Work]]
) -> dict[str, BaseException | str]:
    import asyncio

    errors: dict[str, BaseException | str] = {}

    async def drive(who: str, channel: Channel) -> None:
        worker = Worker(plan, channel, trace)
        try:
            await worker.run_async(who, works[who])
        except ComponentFailed as error:
            errors.setdefault(who, error)
        except Exception as error:
            errors[who] = error
            channel.fail(who, error)
            _record_failure(trace, who, worker.reached, error)

    async def main() -> None:
        with Channel("thread") as channel:
            await asyncio.gather(*(drive(who, channel) for who in works))

    asyncio.run(main())
    return errors


def _process_main(run: Run, who: str, params: dict[str, Any], search_path: str | None) -> None:
    if search_path is not None:
        sys.path.insert(0, search_path)
    plan = Plan.read(os.path.join(run.folder, "plan.json"))
    plan.params.update(params)
    channel = Channel.of_run(run)
    try:
        Worker(plan, channel, TraceWriter(run.folder)).run(who, schedule(plan)[who])
    except ComponentFailed as error:
        channel.leave()
        sys.exit(str(error))
    except BaseException as error:
        traceback.print_exc()
        channel.fail(who, error)
        sys.exit(1)
    channel.leave()


def _run_processes(
    plan: Plan, run: Run, works: dict[str, list[Work]], search_path: str | None
) -> dict[str, BaseException | str]:
    import multiprocessing
    from multiprocessing import resource_tracker

    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # else the first child does, in the run: it outlives that
    outside = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = run.environment()
    client, failed = Client(run.socket_path, run.token), None
    channel = Channel.of_run(run)
    channel.set_params(plan.params)
    children = {
        who: context.Process(
            target=_process_main, args=(run, who, plan.params, search_path), name=who
        )
        for who in works
    }
    try:
        for child in children.values():
            child.start()
        for child in children.values():
            child.join()
        with contextlib.suppress(ChannelError):
            failed = client.ask({"op": "snapshot"})["failed"]
    except OSError as error:  # a child cannot be started: those that live must not wait for it
        channel.fail("cfac run", error)
        raise
    finally:
        del os.environ[ENVIRONMENT]
        if outside is not None:
            os.environ[ENVIRONMENT] = outside
        client.close()
        channel.close()  # all children have ended, or must
    errors: dict[str, BaseException | str] = {
        who: f"its process ended with exit code {child.exitcode}"
        for who, child in children.items()
        if child.exitcode
    }
    if failed is not None:  # perhaps by an end that looked well, as exit code 0
        errors.setdefault(*failed)
    return errors
