"""A client's side of the connection to a run's owner.

No thread is kept (a fork edge forbids them): publishes go out on one connection,
each thread that waits has its own, a coroutine's wait opens one for itself.  After
a fork the child starts afresh.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
import weakref
from typing import Any

from cfac.runtime.errors import ChannelError, ComponentFailed, OwnerLost, WaitTimeout
from cfac.runtime.run import reachable
from cfac.runtime.trace import current_process_name
from cfac.runtime.wire import Decoder, pack

#: A publish never blocks the engine longer than this (seconds).
SEND_TIMEOUT = 2.0
#: A time limit longer than this (seconds) is left to the owner alone; poll(2) cannot hold it.
_LONG = 10 * 86400.0

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """Talks to the owner at ``path``; OwnerLost when it is gone."""

    def __init__(self, path: str, token: str) -> None:
        self.path = path
        self.token = token
        #: this process began before the engine asked for it, and may be given up
        self.early = False
        self._ids = itertools.count(1)
        self._reset()
        _clients.add(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._sending = False
        self._local = threading.local()
        self._sender: socket.socket | None = None

    def _connect(self) -> socket.socket:
        """A new connection; where many come at once, it waits for its turn."""
        deadline = time.monotonic() + SEND_TIMEOUT
        while (connection := self._try_connect(deadline)) is None:
            time.sleep(0.005)
        return connection

    def _try_connect(self, deadline: float) -> socket.socket | None:
        """A new connection; None while the owner's backlog is full (connect(2): EAGAIN)."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(SEND_TIMEOUT)
            with reachable(self.path) as address:
                connection.connect(address)
            name = current_process_name()
            hello = {"op": "hello", "token": self.token, "name": name, "early": self.early}
            connection.sendall(pack(hello))
        except OSError as error:
            connection.close()
            if isinstance(error, BlockingIOError) and time.monotonic() < deadline:
                return None
            raise OwnerLost(f"the channel's owner cannot be reached: {error}") from error
        return connection

    def post(self, message: dict[str, Any]) -> None:
        """Send a message that has no answer."""
        frame = pack(message)
        with self._lock:
            if self._sending:  # a signal handler or a finalizer, in the midst of a post
                self._post_aside(frame)
                return
            self._sending = True
            sent = False
            try:
                if self._sender is None:
                    self._sender = self._connect()
                self._sender.sendall(frame)
                sent = True
            except OSError as error:
                raise OwnerLost(f"the channel's owner is gone: {error}") from error
            finally:
                self._sending = False
                if not sent:  # the stream may end in half a message
                    self._drop_sender()

    def _post_aside(self, frame: bytes) -> None:
        connection = self._connect()
        with connection:
            try:
                connection.sendall(frame)
            except OSError as error:
                raise OwnerLost(f"the channel's owner is gone: {error}") from error

    def _drop_sender(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def ask(self, message: dict[str, Any], timeout: float | None = None) -> Any:
        """Send a message and block for its answer; WaitTimeout after ``timeout`` seconds.

        The owner answers a timed wait itself, with a stall report.
        """
        connection: socket.socket | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
        number = next(self._ids)
        limit = _limit(timeout)
        answered = False
        try:
            connection.settimeout(SEND_TIMEOUT)
            connection.sendall(pack({**message, "id": number, "timeout": timeout}))
            decoder = Decoder()
            while True:
                connection.settimeout(
                    None if limit is None else max(0.01, limit - time.monotonic())
                )
                for answer in decoder.feed(_received(connection.recv(65536))):
                    if answer.get("id") == number:
                        answered = True
                        return _unwrap(answer)
        except TimeoutError as error:
            if isinstance(error, ChannelError):
                raise
            if timeout is None:
                raise OwnerLost("the channel's owner takes no message") from error
            raise WaitTimeout(f"no answer within {timeout} s") from error
        except OSError as error:
            raise OwnerLost(f"the channel's owner is gone: {error}") from error
        finally:
            if not answered:  # the stream is in an unknown state
                connection.close()
                self._local.connection = None

    async def ask_async(self, message: dict[str, Any], timeout: float | None = None) -> Any:
        """Like :meth:`ask`, without blocking the event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        limit = _limit(timeout)
        frame = pack({**message, "id": 0, "timeout": timeout})
        deadline = time.monotonic() + SEND_TIMEOUT
        while (connection := self._try_connect(deadline)) is None:
            await asyncio.sleep(0.005)
        connection.setblocking(False)
        try:
            left = None if limit is None else max(0.01, limit - time.monotonic())
            async with asyncio.timeout(left):
                await loop.sock_sendall(connection, frame)
                decoder = Decoder()
                while True:
                    data = _received(await loop.sock_recv(connection, 65536))
                    for answer in decoder.feed(data):
                        return _unwrap(answer)
        except ChannelError:
            raise
        except TimeoutError as error:
            raise WaitTimeout(f"no answer within {timeout} s") from error
        except OSError as error:
            raise OwnerLost(f"the channel's owner is gone: {error}") from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close this process's connections; the owner goes on."""
        with self._lock:
            self._drop_sender()


def _limit(timeout: float | None) -> float | None:
    """When to stop waiting for the owner's own answer to a timed wait, monotonic seconds."""
    if timeout is None or not timeout < _LONG:
        return None
    return time.monotonic() + max(0.0, timeout) + SEND_TIMEOUT


def _received(data: bytes) -> bytes:
    if not data:
        raise OwnerLost("the channel's owner is gone: it closed the connection")
    return data


def _unwrap(answer: dict[str, Any]) -> Any:
    error = answer.get("error")
    if error is None:
        return answer.get("value")
    kind, text = error["kind"], error["text"]
    if kind == "failed":
        raise ComponentFailed(error["component"], text)
    raise (WaitTimeout if kind == "timeout" else ChannelError)(text)


def _after_fork_in_child() -> None:
    for client in list(_clients):
        with contextlib.suppress(OSError):
            if client._sender is not None:
                client._sender.close()
        client._reset()


os.register_at_fork(after_in_child=_after_fork_in_child)
