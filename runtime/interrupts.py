"""Signals that an engine loses: those to the root during a start, those to a forked child.

Asked to end while it waits for its core, vLLM 0.32 goes on starting: its
``zmq_socket_ctx`` takes a KeyboardInterrupt for the end of the wait, and asyncio's
runner answers the first SIGINT by cancelling a task that blocks in a poll (Python,
Lib/asyncio/runners.py).  So while a start is under way the root's own handlers for
SIGTERM and SIGINT are wrapped: they tell the owner, then do what they did.  The owner
sends the signal again until the engine reacts (:meth:`.family.Family.asked_to_end`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from cfac.runtime.adopt import heed
from cfac.runtime.session import Session

#: What asks a process to end.
POLITE = (signal.SIGTERM, signal.SIGINT)


class Telling:
    """A signal handler of the engine's that also tells the run's owner."""

    def __init__(self, handler: Callable[..., Any], session: Session) -> None:
        self.handler = handler
        self._session = session
        self._pid = os.getpid()

    def __call__(self, number: int, frame: Any) -> Any:
        """Tell the owner, then do what the engine wants done."""
        if os.getpid() == self._pid:  # a forked child inherits it
            with contextlib.suppress(Exception):
                self._session.post({"op": "interrupt", "signal": int(number)})
        return self.handler(number, frame)


def listen(session: Session) -> None:
    """Wrap the handlers that the engine has by now.  In the main thread only.

    Python's own SIGINT handler stays: asyncio's runner replaces that one, and no other.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in POLITE:
        handler = signal.getsignal(number)
        own = callable(handler) and handler is not signal.default_int_handler
        if own and not isinstance(handler, Telling):
            signal.signal(number, Telling(handler, session))  # type: ignore[arg-type]


def ignore() -> None:
    """Give the engine its handlers back, where it has not replaced them itself."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in POLITE:
        handler = signal.getsignal(number)
        if isinstance(handler, Telling):
            signal.signal(number, handler.handler)


def as_after_exec() -> None:
    """In a forked child: the handlers that a new program would have (execve(2)).

    The parent's would act on a copy of the parent's state, and the signal would be lost;
    its event loop's descriptor would tell the parent of the child's signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            heed(number)
