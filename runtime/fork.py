"""Fork edges: a component's process is forked from its parent at a declared state.

Early (``start`` bound): the child is forked when the parent reaches the state, before
the engine knows what it will run; it does its birth imports, then blocks.  The
engine's own ``Process(target=…)`` later adopts it, and ``start()`` sends the target.
At the engine's place (``context`` bound): only the start method changes.

Both stand on multiprocessing's fork process: parent and child, sentinel, exit code,
daemon flag, terminate and join stay as in stock.  Whatever speaks against a fork at
run time falls back to the engine's own start, with one log line.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from multiprocessing import get_context, spawn
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any

from cfac.runtime import device
from cfac.runtime.adopt import Surroundings, apply


def objection() -> str | None:
    """Why this process must not fork now; None if nothing is known against it.

    Python threads may hold locks that the child would never see released; a device
    context does not survive a fork (CUDA: cudaErrorInitializationError).
    """
    others = threading.active_count() - 1
    if others:
        names = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
        return f"{others} other Python thread(s) live at the fork: {', '.join(names)[:200]}"
    if threading.current_thread() is not threading.main_thread():
        return "the fork would happen in a thread"
    return device.in_use()


class Forked(ForkProcess):
    """A child that was forked before the engine made its process object.

    ``adopt`` takes what the engine's constructor was given; ``start`` sends it.  If it
    cannot be sent, the child ends and the object becomes the engine's own process.
    """

    _surroundings: Surroundings
    _executable: Any
    _orders: Any
    _adopted: Callable[[], Any]
    _options: dict[str, Any]
    _fall_back: Callable[[str], None]

    @classmethod
    def born(cls, name: str, before: Callable[[], None], adopted: Callable[[], None]) -> Forked:
        """Fork a child called ``name``: it does ``before``, waits, and is told what to run.

        ``adopted`` is called in the child between being told and running it.
        """
        here, there = get_context("fork").Pipe()
        child = cls(target=_await_orders, args=(there, here, before, adopted), name=name)
        child._surroundings = Surroundings.now()
        child._executable = spawn.get_executable()
        ForkProcess.start(child)
        there.close()
        child._orders = here
        # Before multiprocessing's exit handler joins the child, which has nothing to run.
        Finalize(None, _abandon, (child, here), exitpriority=100)
        return child

    def adopt(
        self, own: Callable[[], Any], options: dict[str, Any], fall_back: Callable[[str], None]
    ) -> Forked:
        """Stand for the process that ``own()`` would make, whose options are ``options``."""
        self._adopted, self._options, self._fall_back = own, options, fall_back
        return self

    def start(self) -> None:
        """Send the child what to run; or fall back to the engine's own process."""
        try:
            if not self.is_alive():
                raise ChildProcessError(f"the child ended with exit code {self.exitcode}")
            if spawn.get_executable() != self._executable:  # as to bind it to a NUMA node
                raise ValueError(f"it runs {os.fsdecode(spawn.get_executable())!r}")
            orders = {
                "target": self._options["target"],
                "args": self._options.get("args", ()),
                "kwargs": self._options.get("kwargs", {}),
                "changes": self._surroundings.changes(),
                "directory": os.getcwd(),
            }
            self._orders.send_bytes(ForkingPickler.dumps(orders))
        except Exception as error:
            self._fall_back(f"{type(error).__name__}: {error}")
            self.discard()
            own = self._adopted()
            own.start()
            self.__class__ = own.__class__  # from here on it *is* the engine's process
            self.__dict__ = own.__dict__
            return
        self._orders.close()

    def discard(self) -> None:
        """End the child, which is not needed."""
        with contextlib.suppress(OSError):
            self._orders.close()
        if self.is_alive():
            self.kill()
        self.join()


def _abandon(child: Forked, orders: Any) -> None:
    """At the parent's exit: a child that was never told what to run must not keep it waiting.

    It may be in the midst of its imports, so that it would see the pipe's end much later.
    """
    if not orders.closed:
        orders.close()
        if child.is_alive():
            child.kill()


def _await_orders(
    there: Any, here: Any, before: Callable[[], None], adopted: Callable[[], None]
) -> None:
    """The forked child: do what can be done now, then what the parent sends."""
    here.close()
    before()
    try:
        data = there.recv_bytes()
    except (EOFError, OSError):
        return  # the parent is gone, or needs no child
    there.close()
    orders = ForkingPickler.loads(data)
    apply(orders["changes"])
    with contextlib.suppress(OSError):
        os.chdir(orders["directory"])
    adopted()
    orders["target"](*orders["args"], **orders["kwargs"])


def adopting(
    child: Forked, callee: Callable[..., Any], fall_back: Callable[[str], None]
) -> Callable[..., Any]:
    """The callee that makes a component's process, so that it adopts ``child``.

    ``fall_back`` is told the reason when the engine's own process is used after all.
    """

    def make(*arguments: Any, **options: Any) -> Any:
        if arguments or "target" not in options:
            fall_back("its process is not made from keywords")
            child.discard()
            return callee(*arguments, **options)
        return child.adopt(lambda: callee(**options), options, fall_back)

    return make


def forking(
    callee: Callable[..., Any], before: Callable[[], None], fall_back: Callable[[str], None]
) -> Callable[..., Any]:
    """The callee that returns a multiprocessing context: a forking one if it may be.

    ``before`` is called before such a context is given out, ``fall_back`` with the
    reason when it is not.
    """

    def choose(*arguments: Any, **options: Any) -> Any:
        own = callee(*arguments, **options)
        if own.get_start_method() == "fork":
            return own
        reason = objection()
        if reason is not None:
            fall_back(reason)
            return own
        before()
        return get_context("fork")

    return choose
