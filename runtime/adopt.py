"""What an early child and its parent have in common, forked or prespawned.

A child that begins before the engine makes its process misses what the parent changes
until then, and what a new process takes from its parent (fork(2), execve(2)): the
environment, ignored and blocked signals, resource limits, the CPUs it may use.
`Surroundings` is that, taken when the child begins; its ``changes`` travel with the
orders, and the child applies them.  Not carried: the umask, and what only the start of a
program reads (LD_PRELOAD, LD_LIBRARY_PATH, PYTHONHASHSEED).
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from dataclasses import dataclass
from typing import Any

_LIMITS = sorted({n for name, n in vars(resource).items() if name.startswith("RLIMIT_")})


@dataclass(eq=False, slots=True)
class Role:
    """What this process was prespawned as.

    ``params`` are the values that its parent went by when it started this process;
    ``schedule`` is set where the plan is read; ``waiting``: no engine has asked for it yet.
    """

    plan: str
    component: str
    params: dict[str, Any]
    schedule: Any = None
    waiting: bool = True


#: Of a prespawned process, for good; None in every other one.
role: Role | None = None


def waits(schedule: object) -> bool:
    """Whether this process was prespawned for ``schedule`` and has not been adopted yet."""
    return role is not None and role.schedule is schedule and role.waiting


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a new process takes from its parent, at one moment."""

    environment: dict[str, str]
    ignored: frozenset[int]
    blocked: frozenset[int]
    limits: dict[int, tuple[int, int]]
    cpus: frozenset[int]

    @classmethod
    def now(cls) -> Surroundings:
        """This process's, for the calling thread."""
        return cls(
            dict(os.environ),
            frozenset(
                int(number)
                for number in signal.valid_signals()
                if signal.getsignal(number) is signal.SIG_IGN
            ),
            frozenset(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            {number: resource.getrlimit(number) for number in _LIMITS},
            frozenset(os.sched_getaffinity(0)),
        )

    def changes(self) -> dict[str, Any]:
        """What is different now; only what changed is in it.  For `apply`, in the child."""
        now = Surroundings.now()
        environment: dict[str, str | None] = {
            key: value
            for key, value in now.environment.items()
            if self.environment.get(key) != value
        }
        environment.update((key, None) for key in self.environment if key not in now.environment)
        found: dict[str, Any] = {"environment": environment}
        found["ignore"] = sorted(now.ignored - self.ignored)
        found["heed"] = sorted(self.ignored - now.ignored)
        found["limits"] = {n: at for n, at in now.limits.items() if self.limits[n] != at}
        for name in ("blocked", "cpus"):
            if getattr(now, name) != getattr(self, name):
                found[name] = sorted(getattr(now, name))
        return found


def heed(number: int) -> None:
    """Give a signal the handler that it has in a new Python process."""
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    signal.signal(number, default)


def apply(changes: dict[str, Any]) -> None:
    """Apply the parent's ``changes`` to this process; what the kernel refuses is left out."""
    for key, value in changes["environment"].items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    for number in changes["ignore"]:
        signal.signal(number, signal.SIG_IGN)
    for number in changes["heed"]:
        heed(number)
    if "blocked" in changes:
        signal.pthread_sigmask(signal.SIG_SETMASK, changes["blocked"])
    for number, limit in changes["limits"].items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, limit)
    if "cpus" in changes:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has ended, or a CPU is not allowed
                os.sched_setaffinity(int(thread), changes["cpus"])
