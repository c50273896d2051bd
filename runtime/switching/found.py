"""A running server by its process id or its address: what it serves, and how to start it again.

Its command line says both (proc(5), cmdline).  Who listens at an address is found as ss(8)
does: the socket's inode is in /proc/net/tcp, and a link to it among a process's descriptors.
Only servers of this machine and user are found.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from urllib.parse import urlsplit

from cfac.runtime.errors import ChannelError
from cfac.runtime.switching.engines import Engine, Server

_LISTEN = "0A"  # TCP_LISTEN of the kernel's net/tcp_states.h


def find(text: str) -> Engine:
    """The server of process ``text``, or at the address ``text``.  ChannelError: there is none."""
    if text.isdigit():
        return Engine.adopt(Server.of(command_line(int(text))), int(text))
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname:
        raise ChannelError(f"neither a process id nor an http:// address: {text}")
    pid = listener(parts.port or 80)
    return Engine.adopt(Server.of(command_line(pid), url=text), pid)


def command_line(pid: int) -> str:
    """The command line of a process; ChannelError if it is gone, or somebody else's."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError as error:
        raise ChannelError(f"process {pid} is gone") from error
    command = shlex.join(words[:-1])
    if not command:
        raise ChannelError(f"process {pid} has no command line: it has ended")
    return command


def listener(port: int) -> int:
    """The process that listens on a TCP port, the oldest of several."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    if not inodes:
        raise ChannelError(f"nobody listens on port {port}")
    holders = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended, or is another user's
            folder = f"/proc/{entry}/fd"
            if any(_link(f"{folder}/{number}") in inodes for number in os.listdir(folder)):
                holders.append(int(entry))
    if not holders:
        raise ChannelError(f"who listens on port {port} is another user's process")
    return min(holders, key=lambda pid: (os.stat(f"/proc/{pid}").st_ctime_ns, pid))


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _listening(port: int) -> set[str]:
    """The inodes of the sockets that listen on a port (proc(5), net/tcp and net/tcp6)."""
    found = set()
    for family in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found
