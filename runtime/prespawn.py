"""Prespawned processes (paper, section 4.1): every process is created at once.

The parent starts a real interpreter, by multiprocessing's own spawn machinery, long
before the engine makes its process.  CPython's spawn sends two pickles down a pipe: how
to prepare, and the process object.  Here both are sent at once, but the object is an
`Early`, which does the component's independent part and then waits for orders on a
socket.  The engine's own ``Process(target=…)`` stays the engine's own object; only its
``start()`` finds the interpreter there already (`adopting`) and sends it what stock's
would: the preparation, with the main module now, and the process object itself.  So
parent and child, sentinel, exit code, name, daemon flag, terminate and join are stock's.

What differs from a start by exec, and how it is made good:

- pipes made since cannot be inherited: descriptors travel over the socket (SCM_RIGHTS,
  unix(7)); the orders themselves in a memfd, so that ``start()`` never blocks on them;
- the parent's environment, signals, limits and CPUs have changed since: see `adopt`,
  and `openmp` for what OpenMP has read already;
- the child waits for a parent that may die: the kernel ends it then (prctl(2),
  PR_SET_PDEATHSIG), and the socket's end where that is not to be had.

A child that died, an engine that forks or starts another program: the engine's own
start, with one log line.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from multiprocessing import context, get_start_method, process, resource_tracker, spawn, util
from multiprocessing.popen_spawn_posix import Popen
from multiprocessing.process import BaseProcess
from typing import Any

from cfac.runtime import adopt

#: multiprocessing's own, of which the type stubs leave much out.
_context: Any = context
_process: Any = process
_util: Any = util
#: Descriptors in one message: the kernel takes 253 (unix(7), SCM_MAX_FD).
_BATCH = 250
#: Of a child's last words (bytes).
_LONGEST = 1000
_PR_SET_PDEATHSIG = 1


class Unfit(Exception):
    """The prespawned child cannot be the engine's process; the text says why."""


class _Interpreter(Popen):
    """A spawned interpreter, prepared as stock's but without the main module.

    Neither is it asked whether this process is itself still being spawned (a nested
    prespawn begins then, and no main module can start it again), nor is the default
    start method settled, which the engine may be about to set.
    """

    _fds: list[Any]

    def _launch(self, process_obj: Any) -> None:
        tracker = resource_tracker.getfd()
        self._fds.append(tracker)
        buffer = io.BytesIO()
        _context.set_spawning_popen(self)
        try:
            _context.reduction.dump(_preparation(process_obj), buffer)
            _context.reduction.dump(process_obj, buffer)
        finally:
            _context.set_spawning_popen(None)
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            self.sentinel, child_end, orders, parent_end = ends
            self._fds += [orders, child_end]
            command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=orders)
            self.pid = _util.spawnv_passfds(spawn.get_executable(), command, self._fds)
        except BaseException:
            _util.close_fds(*ends)
            raise
        self.finalizer = _util.Finalize(self, _util.close_fds, (self.sentinel, parent_end))
        _util.close_fds(orders, child_end)
        # A child that is dead already is seen later, as any other one.
        with contextlib.suppress(BrokenPipeError), open(parent_end, "wb", closefd=False) as pipe:
            pipe.write(buffer.getbuffer())


def _preparation(early: Early) -> dict[str, Any]:
    """What spawn.prepare() is told first: as stock, but for the main module."""
    current = _process.current_process()
    directory: str = _process.ORIGINAL_DIR
    found = {
        "name": early._name,
        "authkey": current.authkey,
        "log_to_stderr": _util._log_to_stderr,
        "sys_path": early.sys_path,
        "sys_argv": sys.argv,
        "orig_dir": directory,
        "dir": os.getcwd(),
    }
    method = get_start_method(allow_none=True)
    return found if method is None else {**found, "start_method": method}


class Early:
    """What a prespawned interpreter unpickles and runs first: in the place of a process."""

    def __init__(self, name: str, package: str, role: adopt.Role, orders: socket.socket) -> None:
        self._name = name
        self.package = package
        self.role = role
        self.orders = orders
        self.parent = os.getpid()
        start = _process.ORIGINAL_DIR
        self.sys_path = [start if path == "" and start else path for path in sys.path]

    def _bootstrap(self, parent_sentinel: int | None = None) -> int:
        """Called by multiprocessing's spawn_main: the child's whole life, its exit code."""
        adopt.role = self.role
        self.orders.set_inheritable(False)
        _end_with_parent(True)
        if os.getppid() != self.parent:
            return 0
        try:
            self._prepare()
            received = _receive(self.orders)
        except KeyboardInterrupt:  # Ctrl-C is for all of the engine, and the parent will say so
            return 1
        except Exception as error:
            with contextlib.suppress(OSError):
                self.orders.send(repr(error).encode(errors="replace")[:_LONGEST])
            return 1
        if received is None:
            return 0  # the parent is gone, or needs no child
        self.orders.close()
        _end_with_parent(False)
        _Shipped.received = received[1:]
        current = _process.current_process()
        with open(received[0], "rb") as file:
            # as in spawn._main: a main module without its guard must not start the engine
            current._inheriting = True
            try:
                changes, preparation = _context.reduction.pickle.load(file)
                self._catch_up(changes, preparation)
                real = _context.reduction.pickle.load(file)
            finally:
                del current._inheriting
        code: int = real._bootstrap(parent_sentinel)
        return code

    def _prepare(self) -> None:
        """The independent part: the engine's package, and what the plan says of the birth."""
        importlib.import_module(f"{self.package}._cfac")
        if self.role.schedule is not None:
            self.role.schedule.born_early()

    def _catch_up(self, changes: dict[str, Any], preparation: dict[str, Any]) -> None:
        """Become what an exec at this moment would have made."""
        from cfac.runtime.openmp import restore

        adopt.apply(changes)
        with contextlib.suppress(Exception):  # a binding that this machine does not allow
            restore()
        path = preparation.pop("sys_path")
        if path != self.sys_path:  # keep what the imports have added here
            added = [p for p in sys.path if p not in self.sys_path and p not in path]
            preparation["sys_path"] = [*path, *added]
        if self.role.schedule is not None:
            self.role.schedule.adopted()
        spawn.prepare(preparation)


class Prespawned:
    """A child that waits for its orders, seen from its parent.  OSError if it cannot start.

    ``unfit`` is told the keys of the environment that have changed since, and says why the
    child can no longer be what the engine would start now.
    """

    def __init__(
        self,
        name: str,
        package: str,
        role: adopt.Role,
        unfit: Callable[[Iterable[str]], str | None] = lambda changed: None,
    ) -> None:
        self.name = name
        self._unfit = unfit
        self._surroundings = adopt.Surroundings.now()
        self._executable = spawn.get_executable()
        self._orders, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            early: Any = Early(name, package, role, there)
            self.interpreter = _Interpreter(early)
        except BaseException:
            self._orders.close()
            raise
        finally:
            there.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self.interpreter.pid

    def order(self, child: BaseProcess) -> Popen:
        """Send what ``child.start()`` would, and give what it gets.  Raises where it cannot be."""
        method = child._start_method or get_start_method()  # type: ignore[attr-defined]
        if method != "spawn":
            raise Unfit(f"its start method is {method!r}, not 'spawn'")
        if spawn.get_executable() != self._executable:
            raise Unfit(f"it runs {os.fsdecode(spawn.get_executable())!r}")
        code = self.interpreter.poll()
        if code is not None:
            raise Unfit(f"the prespawned child ended with exit code {code}{self._last_words()}")
        changes = self._surroundings.changes()
        reason = self._unfit(changes["environment"])
        if reason is not None:
            raise Unfit(reason)
        shipment = _Shipment()
        # The kernel keeps the file for the child: start() does not wait until it is read.
        with open(os.memfd_create(f"cfac-{self.name}"), "wb") as file:
            _context.set_spawning_popen(shipment)
            try:
                preparation = spawn.get_preparation_data(child.name)
                _context.reduction.dump((changes, preparation), file)
                _context.reduction.dump(child, file)
            finally:
                _context.set_spawning_popen(None)
            file.flush()
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            _send(self._orders, [file.fileno(), *shipment.descriptors])
        self._orders.close()
        return self.interpreter

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            words = self._orders.recv(_LONGEST, socket.MSG_DONTWAIT)
            return f": {words.decode(errors='replace')}" if words else ""
        return ""

    def discard(self) -> None:
        """End the child, which is not needed."""
        self._orders.close()
        if self.interpreter.poll() is None:
            self.interpreter.kill()
            self.interpreter.wait()
        self.interpreter.close()

    def forget(self) -> None:
        """In a forked process, whose child it is not: close what keeps it waiting."""
        self._orders.close()


def adopting(
    waiting: dict[str, Prespawned],
    callee: Callable[..., Any],
    fall_back: Callable[[str, str, Prespawned | None], None],
) -> Callable[..., Any]:
    """The callee that makes a process, so that its ``start()`` takes a child from ``waiting``.

    ``waiting`` is by process name.  ``fall_back`` is told the process's name, the reason and
    the child, which it ends, before the engine's own start.
    """

    def popen(child: BaseProcess) -> Any:
        del child.__dict__["_Popen"]  # so that it can be pickled, and is stock's from here on
        ready = waiting.pop(child.name, None)
        try:
            if ready is None:
                raise Unfit("no prespawned child waits for it")
            return ready.order(child)
        except Exception as error:
            text = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
            fall_back(child.name, text, ready)
        return child._Popen(child)  # type: ignore[attr-defined]

    def make(*arguments: Any, **options: Any) -> Any:
        child = callee(*arguments, **options)
        if isinstance(child, BaseProcess):
            child.__dict__["_Popen"] = popen
        return child

    return make


class _Shipment:
    """What pickling asks for while a process is spawned: it collects the descriptors."""

    method = "spawn"

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, descriptor: int) -> int:
        """The place of a descriptor among those that are sent."""
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1

    def DupFd(self, place: int) -> _Shipped:  # noqa: N802 (reduction.DupFd calls it)
        """What stands for it in the pickle."""
        return _Shipped(place)


class _Shipped:
    """A descriptor in a pickle; ``detach`` gives the child's own."""

    received: list[int] = []  # noqa: RUF012 (of this process)

    def __init__(self, place: int) -> None:
        self.place = place

    def detach(self) -> int:
        """The descriptor, as it came."""
        return self.received[self.place]


def _send(orders: socket.socket, descriptors: list[int]) -> None:
    """Send descriptors; each message says how many are still to come."""
    left = list(descriptors)
    while left:
        batch, left = left[:_BATCH], left[_BATCH:]
        socket.send_fds(orders, [struct.pack("=I", len(left))], batch)


def _receive(orders: socket.socket) -> list[int] | None:
    """All that `_send` sent; None where the parent closed its end instead."""
    found: list[int] = []
    while True:
        data, batch, _, _ = socket.recv_fds(orders, 4, _BATCH, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return None
        found += batch
        if struct.unpack("=I", data) == (0,):
            return found


def _end_with_parent(on: bool) -> None:
    """Let the kernel end this process with the thread that started it, or no longer."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL) if on else 0)
