"""A server that a switch starts or stops, seen from outside: its processes.

A server that is started here leads a session of its own, so all that it spawns can be told
from the rest of the machine; of one that was found running, its descendants count.  Memory
is free once *all* of these are gone: true for every version, executor and device (see
docs/switching.md for what an engine could say earlier).  A zombie holds no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from cfac.runtime.errors import ChannelError
from cfac.runtime.run import ENVIRONMENT, SWITCH

#: How often /proc is looked at, seconds.
_PAUSE = 0.05
#: How long a process may take to go after SIGKILL, seconds.
_KILLED = 30.0
#: vllm serve's own, where the command names none.
_PORT = "8000"


@dataclass(frozen=True, slots=True)
class Server:
    """What is served where: ``command`` is empty for one that cannot be started again."""

    model: str
    url: str
    command: tuple[str, ...] = ()

    @classmethod
    def of(cls, command: str, model: str | None = None, url: str | None = None) -> Server:
        """From a command line as ``vllm serve MODEL --port N``; ChannelError without a model."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ChannelError(f"not a command line: {error}: {command}") from error
        if not words:
            raise ChannelError("the command to start the server with is empty")
        model = model or _option(words, "--served-model-name") or _positional(words)
        if model is None:
            raise ChannelError(f"which model does it serve? Name it: {command}")
        host = _option(words, "--host") or "127.0.0.1"
        host = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104 (compared, not bound)
        url = url or f"http://{host}:{_option(words, '--port') or _PORT}"
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ChannelError(f"not an http:// address: {url}")
        return cls(model, url.rstrip("/"), tuple(words))

    def describe(self) -> dict[str, Any]:
        """For a state file."""
        return {"model": self.model, "url": self.url, "command": list(self.command)}


def _option(words: Sequence[str], name: str) -> str | None:
    """The last value of an option, ``--a b`` or ``--a=b``."""
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            found = following
        elif word.startswith(name + "="):
            found = word.partition("=")[2]
    return found or None


def _positional(words: Sequence[str]) -> str | None:
    """The word after ``serve``, or the value of ``--model``."""
    if "serve" in words[:-1]:
        word = words[words.index("serve") + 1]
        if not word.startswith("-"):
            return word
    return _option(words, "--model")


def without_runs() -> dict[str, str]:
    """This process's environment; an engine that is started here has no part in its runs."""
    return {key: value for key, value in os.environ.items() if key not in (ENVIRONMENT, SWITCH)}


@dataclass(eq=False, slots=True)
class Engine:
    """A running server."""

    server: Server
    pid: int
    born: int
    popen: subprocess.Popen[bytes] | None = None
    _seen: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def start(
        cls, server: Server, log: str, environment: Mapping[str, str] | None = None
    ) -> Engine:
        """Start a server; its output is appended to the file ``log``.

        ChannelError if it cannot be started at all.
        """
        try:
            with open(log, "ab") as output:
                popen = subprocess.Popen(
                    server.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**without_runs(), **(environment or {})},
                    start_new_session=True,
                )
        except OSError as error:
            raise ChannelError(f"{server.model} cannot be started: {error}") from error
        stat = _stat(popen.pid)
        return cls(server, popen.pid, stat.born if stat else 0, popen)

    @classmethod
    def adopt(cls, server: Server, pid: int, born: int | None = None) -> Engine:
        """A server found running; ChannelError if it is not, or ``pid`` is another's by now."""
        stat = _stat(pid)
        if stat is None or (born is not None and stat.born != born):
            raise ChannelError(f"process {pid} of {server.model} is gone")
        return cls(server, pid, stat.born)

    def exit_code(self) -> int | None:
        """How the server's first process ended; None while it lives (-1: nobody can know)."""
        if self.popen is not None:
            return self.popen.poll()
        stat = _stat(self.pid)
        return None if stat is not None and stat.born == self.born else -1

    def processes(self) -> set[tuple[int, int]]:
        """The (pid, birth) of all of its processes that live."""
        self.exit_code()  # reaps it
        table = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
        found = {
            (pid, born) for pid, born in self._seen if pid in table and table[pid].born == born
        }
        own = table.get(self.pid)
        if own is not None and own.born == self.born:
            found.add((self.pid, self.born))
        led = self.popen is not None or (own is not None and own.session == self.pid)
        if led:
            found |= {(p, s.born) for p, s in table.items() if s.session == self.pid}
        while True:
            pids = {pid for pid, _ in found}
            more = {(p, s.born) for p, s in table.items() if s.parent in pids} - found
            if not more:
                break
            found |= more
        self._seen = found
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the first process."""
        if self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        for pid, born in self.processes():
            stat = _stat(pid)
            if stat is not None and stat.born == born:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    async def gone(self, within: float) -> bool:
        """Whether all of its processes are gone within so many seconds."""
        clock = asyncio.get_running_loop().time
        limit = clock() + within
        while self.processes():
            if clock() >= limit:
                return False
            await asyncio.sleep(_PAUSE)
        return True

    async def stop(self, within: float) -> bool:
        """SIGTERM, and SIGKILL after so many seconds; True if it was not needed.

        ChannelError if even that does not end them.
        """
        self.processes()  # who is there now, before parents go
        self.signal(signal.SIGTERM)
        if await self.gone(within):
            return True
        self.kill()
        if not await self.gone(_KILLED):
            left = sorted(pid for pid, _ in self.processes())
            raise ChannelError(f"processes of {self.server.model} cannot be ended: {left}")
        return False

    def describe(self) -> dict[str, Any]:
        """For a state file."""
        return {**self.server.describe(), "pid": self.pid, "born": self.born}


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    session: int
    born: int


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> _Stat | None:
    """What /proc/PID/stat says (proc(5)); None where it is gone, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            rest = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if not rest or rest[0] in (b"Z", b"X"):
        return None
    return _Stat(int(rest[1]), int(rest[3]), int(rest[19]))
