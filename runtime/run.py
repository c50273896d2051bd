"""A run: one engine start, with an id, a token, a folder and an owner process.

The run's name in the environment (``CFAC_RUN=<id>:<token>:<folder>``) is how its
children find it.  Its folder holds the socket, the plan and one trace file per
process.  Standard library only; nothing here is on the request path.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cfac.runtime.errors import ChannelError

ENVIRONMENT = "CFAC_RUN"
#: The same for a run that another program made and this engine joins: a switch (parts.py).
SWITCH = "CFAC_SWITCH_RUN"
#: ``CFAC_RUN=off``: this start is not observed; children stay silent.
OFF = "off"
#: What a run is called (see create_run).
_RUN_ID = re.compile(r"\d{8}-\d{6}\.\d{6}-\d+-[0-9a-f]{4}")
#: How many runs' folders are kept.
KEPT_RUNS = 64
#: How long the owner's first process may take (seconds): Python's own start and a fork.
START_TIMEOUT = 10.0
#: sockaddr_un holds 108 bytes (unix(7)); longer folders are reached by a descriptor.
_MAX_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True)
class Run:
    """The identity of a run: what a client needs to reach its owner."""

    id: str
    token: str
    folder: str

    @property
    def socket_path(self) -> str:
        """The owner's socket."""
        return os.path.join(self.folder, "socket")

    def environment(self) -> str:
        """The value of ``CFAC_RUN`` for children."""
        return f"{self.id}:{self.token}:{self.folder}"

    def tell_params(self, values: Mapping[str, Any]) -> None:
        """Let the run's other processes know the parameters' values, as far as they are known."""
        path = os.path.join(self.folder, "params.json")
        with contextlib.suppress(OSError):  # then all sites count that need one
            _write_json(f"{path}.{os.getpid()}", dict(values))
            os.replace(f"{path}.{os.getpid()}", path)

    def params(self) -> dict[str, Any]:
        """What has been told of the parameters."""
        try:
            with open(os.path.join(self.folder, "params.json"), encoding="utf-8") as file:
                values: dict[str, Any] = json.load(file)
                return values
        except (OSError, ValueError):
            return {}

    @classmethod
    def from_environment(cls, variable: str = ENVIRONMENT) -> Run | None:
        """The run that this process belongs to, or None."""
        parts = os.environ.get(variable, "").split(":", 2)
        return cls(*parts) if len(parts) == 3 else None


@contextlib.contextmanager
def reachable(path: str) -> Iterator[str]:
    """A socket's path in a form that is short enough for the kernel.  OSError if it is gone."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield path
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def runs_folder() -> str:
    """Where runs live: ``$CFAC_RUNS``, else ``cfac-<uid>`` in the temporary folder.

    Created with mode 0700; ChannelError if somebody else owns it.
    """
    import tempfile

    default = os.path.join(tempfile.gettempdir(), f"cfac-{os.getuid()}")
    folder = os.path.abspath(os.environ.get("CFAC_RUNS") or default)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    status = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ChannelError(f"{folder} is not a folder of this user: set CFAC_RUNS to another one")
    return folder


def create_run(plan: dict[str, Any] | None, *, observe: bool = False, owner: bool = True) -> Run:
    """Make a run with this process as its root, and start its owner.

    Without ``owner`` there is only the folder, for the trace.  Raises OSError or
    ChannelError; leaves nothing behind then.
    """
    import shutil

    parent = runs_folder()
    _prune(parent)
    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    run_id = f"{stamp}.{int(now % 1 * 1e6):06d}-{os.getpid()}-{os.urandom(2).hex()}"
    folder = os.path.join(parent, run_id)
    run = Run(run_id, os.urandom(16).hex(), folder)
    os.mkdir(folder, mode=0o700)
    try:
        info = {
            "id": run_id,
            "root": os.getpid(),
            "argv": sys.argv[:64],
            "observe": observe,
            "created": time.time(),
            "monotonic": time.monotonic_ns(),
        }
        _write_json(os.path.join(folder, "run.json"), info)
        if plan is not None:
            _write_json(os.path.join(folder, "plan.json"), plan)
        if owner:
            _start_owner(run)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return run


def _write_json(path: str, data: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)


def _start_owner(run: Run) -> None:
    """Start the owner as a grandchild in a session of its own, with a listening socket.

    The socket listens before the owner runs, so that clients never have to retry.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise ChannelError("no Python executable to start the owner with (a frozen program?)")
    _check_watchable()
    here = os.path.dirname(os.path.abspath(__file__))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(run.socket_path) as address:
            listener.bind(address)
        os.chmod(run.socket_path, 0o600)
        listener.listen(4096)  # the kernel takes what net.core.somaxconn allows
        arguments = [run.id, run.folder, str(os.getpid())]
        script = os.path.join(here, "owner_main.py")
        environment = {k: v for k, v in os.environ.items() if k not in (ENVIRONMENT, SWITCH)}
        environment["CFAC_OWNER_TOKEN"] = run.token  # argv is for everybody to read
        # Its number there: another than here, or an old C library leaves close-on-exec set.
        number = 3 if listener.fileno() != 3 else 4
        silent = [(os.POSIX_SPAWN_OPEN, n, "/dev/null", os.O_RDWR, 0) for n in _to_silence()]
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", script, str(number), *arguments],
            environment,
            # The socket first: where standard input is closed it may have that number.
            file_actions=[(os.POSIX_SPAWN_DUP2, listener.fileno(), number), *silent],
        )
        if not _ends_well(pid):  # the middle process, which ends at once
            raise ChannelError("the owner process could not be started")
    finally:
        listener.close()


def _check_watchable() -> None:
    """OSError where the kernel or a sandbox lets nobody watch a process."""
    from cfac.runtime.processes import open_pidfd

    pidfd = open_pidfd(os.getpid())
    if pidfd is not None:
        os.close(pidfd)


def _to_silence() -> list[int]:
    """The standard descriptors that the owner gets as /dev/null: error only if it is closed."""
    try:
        os.fstat(2)
    except OSError:
        return [0, 1, 2]
    return [0, 1]


def _ends_well(pid: int) -> bool:
    """Whether a child ends soon and with status 0; it is ended if it does not."""
    deadline = time.monotonic() + START_TIMEOUT
    pause = 0.001
    try:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status == 0
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
    except ChildProcessError:  # the engine ignores SIGCHLD, or reaps all children itself
        return True


def _prune(parent: str) -> None:
    """Remove the oldest runs' folders whose owners are gone, and nothing else."""
    import shutil

    names = sorted(name for name in os.listdir(parent) if _RUN_ID.fullmatch(name))
    for name in names[: max(0, len(names) - KEPT_RUNS)]:
        folder = os.path.join(parent, name)
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with probe:
            probe.setblocking(False)  # a full backlog has an owner, too
            try:
                with reachable(os.path.join(folder, "socket")) as address:
                    probe.connect(address)
            except BlockingIOError:
                continue
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
