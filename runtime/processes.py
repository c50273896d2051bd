"""Watching and ending processes that are not our children, by pidfd.

pidfd_open(2) gives a descriptor that cannot come to mean another process; how the
process ended is read from the zombie (proc(5), field 52) or, once it has been
reaped, from ioctl PIDFD_GET_INFO (Linux 6.15 and newer).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct

#: System calls 424 and 434 on every architecture, for Pythons built without them
#: (those of uv and conda are built against old headers).
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434
#: _IOWR(0xFF, 11, struct pidfd_info), whose first version has 64 bytes.
_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO = struct.Struct("=QQ11Ii")


def open_pidfd(pid: int) -> int | None:
    """A descriptor for the process that becomes readable when it ends; None if it is gone.

    OSError where it lives but cannot be watched.
    """
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        pidfd = _system_call(_PIDFD_OPEN, pid, 0)
    except ProcessLookupError:
        return None
    os.set_inheritable(pidfd, False)
    return pidfd


def send_signal(pidfd: int, number: signal.Signals) -> None:
    """Signal the process; nothing happens if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(pidfd, number)
        else:
            _system_call(_PIDFD_SEND_SIGNAL, pidfd, int(number), None, 0)


def _system_call(number: int, *arguments: int | None) -> int:
    import ctypes

    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def exit_status(pid: int, pidfd: int) -> int | None:
    """The wait status (wait(2)) of a process that has ended; None if it cannot be known."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as f:
        fields = f.read().rpartition(b")")[2].split()
        if fields[0] in {b"Z", b"X"}:
            return int(fields[49])
    with contextlib.suppress(OSError, ValueError, struct.error):  # ValueError: no descriptor
        buffer = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *([0] * 12), 0))
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
        mask, *_, status = _PIDFD_INFO.unpack(buffer)
        if mask & _PIDFD_INFO_EXIT:
            return int(status)
    return None


def was_killed(status: int | None) -> bool:
    """Whether a wait status shows a signal other than the polite ones."""
    if status is None or not os.WIFSIGNALED(status):
        return False
    return os.WTERMSIG(status) not in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def is_abnormal(status: int | None) -> bool:
    """Whether a wait status shows a death nobody asked for politely."""
    failed = status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
    return failed or was_killed(status)


def is_exiting(pid: int) -> bool:
    """Whether a process is past saving, though its end cannot be seen yet (PF_EXITING)."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as f:
        return bool(int(f.read().rpartition(b")")[2].split()[6]) & 4)
    return False


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal (proc_pid_status(5))."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open(f"/proc/{pid}/status", "rb") as file,
    ):
        mask = file.read().partition(b"\nSigCgt:")[2].split(None, 1)[0]
        return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def suspicion(status: int | None) -> int:
    """Of processes that ended together: which end may have caused the others, 0 the first."""
    if was_killed(status):
        return 0
    if status is None:  # reaped by a parent that lived on
        return 1
    return 2 if is_abnormal(status) else 3


def describe_status(status: int | None) -> str:
    """How a process ended, for a message."""
    if status is None:
        return "ended"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"ended by signal {number} ({signal.Signals(number).name})"
        except ValueError:
            return f"ended by signal {number}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"


def processes_of_run(run_id: str) -> list[int]:
    """The pids whose environment names the run, our own excluded (proc(5), environ)."""
    needles = tuple(f"{name}={run_id}".encode() for name in ("CFAC_RUN", "CFAC_SWITCH_RUN"))
    found = []
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in entries:
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            if any(word.startswith(needles) for word in file.read().split(b"\0")):
                found.append(int(entry))
    return found
