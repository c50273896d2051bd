"""The owner of a run: a tiny process that holds the state table (paper, Figure 2).

It answers waits, watches the run's processes by pidfd, reports stalls, and when a
component fails or a process ends too early it fails everybody who waits and ends
the processes that the run created; never the process that started the run.  Once
all is final it only sleeps until the root process ends (DESIGN section 5).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from cfac.runtime.errors import ChannelError, ComponentFailed, WaitTimeout
from cfac.runtime.family import Family
from cfac.runtime.plan import ParamsUnknown, Plan, split_label
from cfac.runtime.stall import LONGEST_PAUSE, StallClock, describe_stall
from cfac.runtime.table import Key, StateTable, Waiter, label
from cfac.runtime.trace import QuietTrace, TraceWriter
from cfac.runtime.wire import Decoder, pack

#: Out of descriptors, the owner accepts again after this long (seconds).
_ACCEPT_AGAIN = 0.1


class Connection:
    """One accepted client connection."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.sock = sock
        self.pid = pid
        self.decoder = Decoder()
        self.trusted = False
        self.waiters: set[Waiter] = set()
        #: what its socket did not take yet
        self.unsent = bytearray()


@dataclass(eq=False, slots=True)
class Asked(Waiter):
    """A client's wait: for states it names, or for what the plan says of a transition."""

    transition: str | None = None
    index: int | None = None


class Owner:
    """The event loop of one run."""

    def __init__(
        self, listener: socket.socket, run_id: str, token: str, folder: str, root: int
    ) -> None:
        self.run_id = run_id
        self.token = token
        self.table = StateTable()
        self.plan: Plan | None = None
        plan_path = os.path.join(folder, "plan.json")
        if os.path.exists(plan_path):
            self.plan = Plan.read(plan_path)
            self.plan.params.clear()  # argv here is not the engine's
        with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
            self.observe_only = bool(json.load(file)["observe"])
        self.trace = QuietTrace(TraceWriter(folder, "cfac-owner"), self.log)
        self.selector = selectors.DefaultSelector()
        self.listener = listener
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        self.connections: set[Connection] = set()
        self.limits: dict[Waiter, float] = {}
        self.parked: list[tuple[Asked, Connection]] = []
        self.stalls = StallClock()
        self.family = Family(self, root)
        self.final = False
        self.over = False
        #: out of descriptors, nothing is accepted until then
        self._deaf, self._deaf_until = False, 0.0
        #: components whose process ended cleanly, and how; without a plan only.
        self.gone: dict[str, str] = {}

    # -- the loop ---------------------------------------------------------------

    def serve(self) -> None:
        """Serve until the run is over."""
        while not self.over:
            for key, _ in self.selector.select(self._pause()):
                key.data(key.fileobj)
            self._tick()

    def _pause(self) -> float | None:
        now = time.monotonic()
        times = list(self.limits.values())
        times += [self._deaf_until] if self._deaf else []
        times += [self.stalls.due(waiter) for waiter in self._all_waiters()]
        deadline = self.family.next_deadline()
        if deadline is not None:
            times.append(deadline)
        return min(LONGEST_PAUSE, max(0.0, min(times) - now)) if times else None

    def _tick(self) -> None:
        now = time.monotonic()
        if self._deaf and self._deaf_until <= now:
            self._deaf = False
            self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        for waiter, limit in list(self.limits.items()):
            if limit <= now:
                self._drop(waiter)
                text = f"{waiter.who} waited {now - waiter.since:.1f} s\n" + self._stall(waiter)
                waiter.deliver(None, WaitTimeout(text))
        for waiter in self.stalls.take_due(self._all_waiters()):
            text = self._stall(waiter)
            self.trace.write("stall", who=waiter.who, text=text)
            self.log(f"{waiter.who} has waited {now - waiter.since:.0f} s\n{text}")
        self.family.tick(now)

    def _all_waiters(self) -> list[Waiter]:
        return [*self.table.waiters(), *(parked for parked, _ in self.parked)]

    def _stall(self, waiter: Waiter) -> str:
        return describe_stall(waiter, self.table, self.plan, self.family.pids())

    def log(self, text: str) -> None:
        """One message on the engine's standard error; never raises."""
        data = f"cfac: run {self.run_id}: {text}\n".encode(errors="replace")
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        with contextlib.suppress(OSError):
            for start in range(0, len(data), select.PIPE_BUF):
                if not poll.poll(0):  # nobody reads it, and the engine must not wait for that
                    return
                os.write(2, data[start : start + select.PIPE_BUF])

    # -- connections ------------------------------------------------------------

    def hear_out(self, pid: int | None = None) -> None:
        """Take what a process (all) has said last, over connections not accepted yet, too."""
        while not self._deaf and self._accept(None):
            pass
        for connection in [c for c in self.connections if pid in (None, c.pid)]:
            self.read(connection)

    def _accept(self, _: Any) -> bool:
        """Accept one connection; whether there was one."""
        try:
            sock, _address = self.listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._deaf_until:  # said once
                self.log(f"no connection can be accepted for a while: {error}")
            self.selector.unregister(self.listener)
            self._deaf, self._deaf_until = True, time.monotonic() + _ACCEPT_AGAIN
            return False
        with contextlib.suppress(OSError):
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid = (int.from_bytes(credentials[k : k + 4], sys.byteorder) for k in (0, 4))
            if uid != os.getuid():
                self.log(f"refused a connection of user {uid} (process {pid})")
                sock.close()
                return True
            sock.setblocking(False)
            connection = Connection(sock, pid)
            self.connections.add(connection)
            self.selector.register(sock, selectors.EVENT_READ, lambda _: self.read(connection))
        return True

    def read(self, connection: Connection) -> None:
        """Take what a connection has sent; drops it at its end or on nonsense."""
        if connection not in self.connections:
            return  # closed by an event of the same round
        try:
            while data := connection.sock.recv(65536):
                for message in connection.decoder.feed(data):
                    self._handle(connection, message)
                if connection not in self.connections:
                    return  # a message led to the end of its own sender, read to its end there
        except BlockingIOError:
            return
        except ConnectionError:
            pass  # it went away without waiting for its answer
        except Exception as error:  # whatever it sent, everybody else goes on
            self.log(f"dropped a connection of process {connection.pid}: {error}")
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self.selector.unregister(connection.sock)
            connection.sock.close()
            for waiter in connection.waiters:
                self._drop(waiter)
            connection.unsent.clear()

    def _drop(self, waiter: Waiter) -> None:
        self.table.forget(waiter)
        self.limits.pop(waiter, None)
        self.parked = [entry for entry in self.parked if entry[0] is not waiter]

    def _handle(self, connection: Connection, message: dict[str, Any]) -> None:
        operation = message["op"]
        if operation == "hello":
            if message["token"] != self.token:
                raise ChannelError("wrong token")
            connection.trusted = True
            self.family.join(connection.pid, str(message.get("name", "")))
            if message.get("early"):
                self.family.mark_early(connection.pid, True)
            return
        if not connection.trusted:
            raise ChannelError("no token was given")
        handler = getattr(self, f"_on_{operation}", None)
        if handler is None:
            raise ChannelError(f"unknown operation {operation!r}")
        handler(connection, message)

    # -- operations -------------------------------------------------------------

    def _on_set(self, connection: Connection, message: dict[str, Any]) -> None:
        component, state = message["c"], message["s"]
        if not self.table.set_state(component, state, message.get("v")):
            text = f"{component}.{state} was published again, by process {connection.pid}"
            self.trace.write("note", text=text)
            return
        self.family.host(connection.pid, component)
        self.check_final()

    def _on_host(self, connection: Connection, message: dict[str, Any]) -> None:
        self.family.host(connection.pid, message["c"])

    def _on_params(self, _: Connection, message: dict[str, Any]) -> None:
        if self.plan is None:
            return
        self.plan.params.update(message["values"])
        parked, self.parked = self.parked, []
        for waiter, connection in parked:
            self._resolve(waiter, connection)
        self.check_final()

    def _on_wait(self, connection: Connection, message: dict[str, Any]) -> None:
        number = message["id"]

        def deliver(values: list[Any] | None, error: ChannelError | None) -> None:
            self.limits.pop(waiter, None)
            connection.waiters.discard(waiter)
            self._answer(connection, number, values, error)

        waiter = Asked(str(message["who"]), (), deliver)
        waiter.transition, waiter.index = message.get("transition"), message.get("index")
        connection.waiters.add(waiter)
        timeout = message.get("timeout")
        if timeout is not None and not math.isnan(timeout):
            self.limits[waiter] = waiter.since + float(timeout)
        if waiter.transition is None:
            waiter.needs = tuple((str(c), str(s)) for c, s in message["needs"])
            self.table.wait(waiter)
            self.check_gone()
        else:
            self._resolve(waiter, connection)

    def _resolve(self, waiter: Asked, connection: Connection) -> None:
        if self.plan is None or waiter.transition is None:
            raise ChannelError("this run has no plan")
        try:
            waiter.needs = tuple(self.plan.needs(waiter.transition, waiter.index))
        except ParamsUnknown:
            if self.table.failure is not None:
                waiter.deliver(None, self.table.failure)
            else:
                self.parked.append((waiter, connection))
            return
        self.table.wait(waiter)

    def _on_fail(self, _: Connection, message: dict[str, Any]) -> None:
        self.fail(str(message["c"]), str(message["error"]))

    def _on_stop(self, _: Connection, message: dict[str, Any]) -> None:
        self.trace.write("note", text=f"the engine ends {message['c']}")
        self.family.stop(str(message["c"]))

    def _on_early(self, connection: Connection, message: dict[str, Any]) -> None:
        self.family.mark_early(connection.pid, bool(message["value"]))

    def _on_interrupt(self, connection: Connection, message: dict[str, Any]) -> None:
        if connection.pid == self.family.root:
            self.family.asked_to_end(int(message["signal"]))

    def _on_leave(self, connection: Connection, _: dict[str, Any]) -> None:
        self.family.leave(connection.pid)

    def _on_snapshot(self, connection: Connection, message: dict[str, Any]) -> None:
        self.family.notice_ends()
        failure = self.table.failure
        value = {
            "current": self.table.current,
            "final": self.final,
            "pids": self.family.pids(),
            "failed": failure and (failure.component, failure.cause),
        }
        self._answer(connection, message["id"], value, None)

    def _on_dissolve(self, _: Connection, message: dict[str, Any]) -> None:
        self.trace.write("note", text=message["reason"])
        self.over = True

    def _answer(
        self, connection: Connection, number: int, value: Any, error: ChannelError | None
    ) -> None:
        answer: dict[str, Any] = {"id": number, "value": value}
        if isinstance(error, ComponentFailed):
            answer["error"] = {"kind": "failed", "component": error.component, "text": error.cause}
        elif error is not None:
            kind = "timeout" if isinstance(error, WaitTimeout) else "error"
            answer["error"] = {"kind": kind, "text": str(error)}
        try:
            frame = pack(answer)
        except (ChannelError, RecursionError) as problem:
            self._answer(connection, number, None, ChannelError(str(problem)))
            return
        connection.unsent += frame
        self._send(connection)

    def _send(self, connection: Connection) -> None:
        """Send what the socket takes now, the rest when it takes more."""
        if connection not in self.connections:
            return
        try:
            while connection.unsent:
                del connection.unsent[: connection.sock.send(connection.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self.selector.modify(connection.sock, events, lambda _: self._move(connection))

    def _move(self, connection: Connection) -> None:
        self.read(connection)
        if connection.unsent:
            self._send(connection)

    def _on_retire(self, connection: Connection, _: dict[str, Any]) -> None:
        if connection.pid == self.family.root:
            self.family.retired = True

    def _on_release(self, connection: Connection, _: dict[str, Any]) -> None:
        """The root has no more part in the run, and its end is nobody else's."""
        if connection.pid == self.family.root:
            self.family.retired = self.family.released = True

    # -- what the family and the states tell ---------------------------------------

    def fail(self, component: str, cause: str) -> None:
        """A component failed: tell everybody who waits, then end the run's processes."""
        state = self.table.current.get(component)
        place = f" in state {state}" if state else " before its first state"
        failure = ComponentFailed(component, f"{cause}{place}")
        if not self.table.fail(failure):
            return
        for waiter, _ in self.parked:
            waiter.deliver(None, failure)
        self.parked.clear()
        self.trace.write("failed", c=component, s=state, cause=cause)
        self.log(f"component {component} failed: {failure.cause}")
        self.family.end(engine_first=True)

    def check_gone(self) -> None:
        """Fail if somebody waits for a component whose process has ended cleanly."""
        for waiter in self.table.waiters():
            for component, _ in sorted(waiter.missing):
                if component in self.gone:
                    self.fail(component, self.gone[component])
                    return

    def publish_exit(self, component: str) -> bool:
        """Publish the next states of a component that *are* its process's end."""
        name, index = split_label(component)
        if self.plan is None or name not in self.plan.components:
            return False
        published = False
        while True:
            following = self.plan.following(name, self.table.current.get(component))
            if following is None or not self.plan.at_exit(name, following):
                return published
            self.trace.write("publish", c=name, i=index, s=following)
            self.table.set_state(component, following)
            self.check_final()
            published = True

    def complete(self, component: str) -> bool:
        """Whether a component has reached its last state."""
        name, _ = split_label(component)
        if self.plan is None or name not in self.plan.components:
            return True
        return self.table.current.get(component) == self.plan.states(name)[-1]

    def is_program(self) -> bool:
        """Whether the root is a program that a parameter names, and no script or notebook."""
        if self.plan is None:
            return False
        named = [name for name, p in self.plan.data["params"].items() if p.get("programs")]
        return any(self.plan.params.get(name) is True for name in named)

    def check_final(self) -> None:
        """Note when every state of every component is published."""
        if self.final or self.plan is None or not self.plan.settled:
            return
        for component, index in self.plan.instances():
            last = self.plan.states(component)[-1]
            key: Key = (label(component, index), last)
            exits = self.plan.at_exit(component, last)
            if key not in self.table.values and not exits:
                return
        self.final = True
        self.trace.write("note", text="all states are final")


def serve(descriptor: int, run_id: str, token: str, folder: str, root: int) -> None:
    """Serve a run on an inherited listening socket until it is over."""
    import resource

    with contextlib.suppress(OSError, ValueError):  # every waiting thread has a connection
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    owner = Owner(listener, run_id, token, folder, root)
    try:
        owner.serve()
    finally:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, "socket"))
