"""The channel: ``set_state`` and ``wait_state`` (paper, section 3.2).

The same calls work in threads, processes and coroutines.  With ``transport="thread"``
the owner is a daemon thread in this process; with ``transport="process"`` it is a
tiny process of its own and the channel may be pickled into child processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from cfac.runtime.client import Client
from cfac.runtime.errors import ChannelError, ComponentFailed, OwnerLost, WaitTimeout
from cfac.runtime.stall import LONGEST_PAUSE, StallClock, describe_stall
from cfac.runtime.table import StateTable, Waiter

if TYPE_CHECKING:
    from cfac.runtime.run import Run

Transport = Literal["thread", "process"]
log = logging.getLogger("cfac")
_Event = Callable[[StateTable], None]


class Channel:
    """One namespace of components and their states.

    ``set_state`` publishes a state; it is irreversible, and publishing it again
    changes nothing.  ``wait_state`` returns the published value.  Waits raise
    ComponentFailed when any component failed, WaitTimeout after ``timeout``
    seconds, OwnerLost when the channel was closed.
    """

    def __init__(self, transport: Transport = "thread") -> None:
        self._backend: _ThreadBackend | _ProcessBackend
        if transport == "thread":
            self._backend = _ThreadBackend()
        elif transport == "process":
            self._backend = _ProcessBackend.start(None)
        else:
            raise ValueError(f"transport must be 'thread' or 'process', not {transport!r}")

    @classmethod
    def of_run(cls, run: Run) -> Channel:
        """The channel of a run that exists already."""
        channel = cls.__new__(cls)
        channel._backend = _ProcessBackend(run)
        return channel

    def set_state(self, component: str, state: str, value: Any = None) -> None:
        """Publish that ``component`` has reached ``state``; wakes who waits for it.

        ``value`` is small JSON or bytes on a process channel, anything on a thread's.
        """
        _check_names(component, state)
        self._backend.set_state(component, state, value)

    def wait_state(
        self, component: str, state: str, timeout: float | None = None, *, who: str | None = None
    ) -> Any:
        """Block until the state is published; returns its value.

        ``who`` is how stall reports call the waiter (default: the thread's name).
        """
        return self.wait_states([(component, state)], timeout, who=who)[0]

    def wait_states(
        self,
        needs: list[tuple[str, str]],
        timeout: float | None = None,
        *,
        who: str | None = None,
    ) -> list[Any]:
        """Block until all of ``needs`` are published; returns their values in order."""
        for need in needs:
            _check_names(*need)
        return self._backend.wait(needs, timeout, who or threading.current_thread().name)

    async def wait_state_async(
        self, component: str, state: str, timeout: float | None = None, *, who: str | None = None
    ) -> Any:
        """:meth:`wait_state` for coroutines: only the calling task waits."""
        return (await self.wait_states_async([(component, state)], timeout, who=who))[0]

    async def wait_states_async(
        self,
        needs: list[tuple[str, str]],
        timeout: float | None = None,
        *,
        who: str | None = None,
    ) -> list[Any]:
        """:meth:`wait_states` for coroutines."""
        for need in needs:
            _check_names(*need)
        return await self._backend.wait_async(needs, timeout, who or "a coroutine")

    def fail(self, component: str, error: BaseException | str) -> None:
        """Say that ``component`` failed: everybody who waits gets ComponentFailed."""
        cause = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._backend.fail(component, cause)

    def leave(self) -> None:
        """Say that this process's work is done: its end is no failure (process channels)."""
        self._backend.post({"op": "leave"})

    def set_params(self, values: dict[str, Any]) -> None:
        """Tell the owner the values of the plan's parameters (process channels)."""
        self._backend.post({"op": "params", "values": values})

    def close(self) -> None:
        """End the channel; who still waits gets OwnerLost."""
        self._backend.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> Any:
        if isinstance(self._backend, _ThreadBackend):
            raise TypeError("a thread channel cannot go to another process: use 'process'")
        return self._backend.run

    def __setstate__(self, run: Run) -> None:
        self._backend = _ProcessBackend(run)


def _check_names(component: str, state: str) -> None:
    if not (isinstance(component, str) and isinstance(state, str)):
        raise TypeError(f"a component and a state are names, not {component!r} and {state!r}")


class _ThreadBackend:
    """A daemon thread that takes events from a queue (paper, Figure 2)."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._closed = False
        #: a wait must not be queued behind the end of the queue; a finalizer may come between
        self._closing = threading.RLock()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="cfac-channel", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        table, stalls = StateTable(), StallClock()
        while True:
            waiters = table.waiters()
            due = min((stalls.due(waiter) for waiter in waiters), default=None)
            pause = None if due is None else min(LONGEST_PAUSE, max(0.0, due - time.monotonic()))
            try:
                event = self._events.get(timeout=pause)
            except queue.Empty:
                for waiter in stalls.take_due(waiters):
                    log.warning("%s", _stall_text(table, waiter))
                continue
            if event is None:
                break
            event(table)
        table.abandon(OwnerLost("the channel was closed"))

    def _post(self, event: _Event) -> None:
        if self._pid != os.getpid():
            raise ChannelError("a thread channel does not cross a fork: use 'process'")
        with self._closing:
            if self._closed:
                raise OwnerLost("the channel was closed")
            self._events.put(event)

    def set_state(self, component: str, state: str, value: Any) -> None:
        def publish(table: StateTable) -> None:
            table.set_state(component, state, value)

        self._post(publish)

    def fail(self, component: str, cause: str) -> None:
        def fail(table: StateTable) -> None:
            state = table.current.get(component)
            place = f" in state {state}" if state else " before its first state"
            table.fail(ComponentFailed(component, cause + place))

        self._post(fail)

    def wait(self, needs: list[tuple[str, str]], timeout: float | None, who: str) -> list[Any]:
        woken = threading.Lock()
        woken.acquire()
        outcome: list[tuple[list[Any] | None, ChannelError | None]] = []

        def deliver(values: list[Any] | None, error: ChannelError | None) -> None:
            if not outcome:
                outcome.append((values, error))
                woken.release()

        waiter = Waiter(who, tuple(needs), deliver)
        self._post(lambda table: table.wait(waiter))
        try:
            if not woken.acquire(timeout=_lock_timeout(timeout)):
                self._post(lambda table: _time_out(table, waiter))
                woken.acquire()
        except BaseException:  # KeyboardInterrupt: nobody waits here any more
            self._forget(waiter)
            raise
        return _result(*outcome[0])

    async def wait_async(
        self, needs: list[tuple[str, str]], timeout: float | None, who: str
    ) -> list[Any]:
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()

        def resolve(values: list[Any] | None, error: ChannelError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(values or [])
            else:
                future.set_exception(error)

        def deliver(values: list[Any] | None, error: ChannelError | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(resolve, values, error)

        waiter = Waiter(who, tuple(needs), deliver)
        self._post(lambda table: table.wait(waiter))
        timer = None
        if timeout is not None and timeout < threading.TIMEOUT_MAX:
            timer = loop.call_later(timeout, self._time_out_later, waiter)
        try:
            return await future
        except asyncio.CancelledError:
            self._forget(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _forget(self, waiter: Waiter) -> None:
        with contextlib.suppress(ChannelError):
            self._post(lambda table: table.forget(waiter))

    def _time_out_later(self, waiter: Waiter) -> None:
        with contextlib.suppress(ChannelError):  # closed meanwhile: it has its OwnerLost
            self._post(lambda table: _time_out(table, waiter))

    def post(self, message: dict[str, Any]) -> None:
        """Nothing to tell: the owner is a thread of this process."""

    def close(self) -> None:
        with self._closing:
            if self._closed or self._pid != os.getpid():
                return
            self._closed = True
            self._events.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)


def _lock_timeout(timeout: float | None) -> float:
    """A time limit in the form that a lock takes."""
    if timeout is None or not timeout < threading.TIMEOUT_MAX:
        return -1
    return max(0.0, timeout)


def _stall_text(table: StateTable, waiter: Waiter) -> str:
    waited = time.monotonic() - waiter.since
    return f"{waiter.who} has waited {waited:.1f} s\n{describe_stall(waiter, table, None, {})}"


def _time_out(table: StateTable, waiter: Waiter) -> None:
    table.forget(waiter)
    waiter.deliver(None, WaitTimeout(_stall_text(table, waiter)))


def _result(values: list[Any] | None, error: ChannelError | None) -> list[Any]:
    if error is not None:
        raise error
    return values or []


class _ProcessBackend:
    """Speaks to the owner process of a run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._client = Client(run.socket_path, run.token)

    @classmethod
    def start(cls, plan: dict[str, Any] | None) -> _ProcessBackend:
        from cfac.runtime.run import create_run

        return cls(create_run(plan))

    def post(self, message: dict[str, Any]) -> None:
        self._client.post(message)

    def set_state(self, component: str, state: str, value: Any) -> None:
        self.post({"op": "set", "c": component, "s": state, "v": value})

    def fail(self, component: str, cause: str) -> None:
        self.post({"op": "fail", "c": component, "error": cause})

    def wait(self, needs: list[tuple[str, str]], timeout: float | None, who: str) -> list[Any]:
        message = {"op": "wait", "who": who, "needs": needs}
        return self._client.ask(message, timeout) or []

    async def wait_async(
        self, needs: list[tuple[str, str]], timeout: float | None, who: str
    ) -> list[Any]:
        message = {"op": "wait", "who": who, "needs": needs}
        return await self._client.ask_async(message, timeout) or []

    def close(self) -> None:
        with contextlib.suppress(OwnerLost):
            self.post({"op": "dissolve", "reason": "the channel was closed"})
        self._client.close()
