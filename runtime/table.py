"""The state table of a channel (paper, section 3.2, Figure 2).

Pure bookkeeping, no I/O and no lock: the one owner of a channel calls it.  The
paper keeps a dictionary from (component, state) to waiting handles; here a waiter
may need several states, and a failure wakes everybody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cfac.runtime.errors import ChannelError, ComponentFailed

Key = tuple[str, str]


@dataclass(eq=False, slots=True)
class Waiter:
    """Somebody blocked until all of ``needs`` are published.

    ``deliver`` is called once, with the awaited values in the order of ``needs``
    or with an error.
    """

    who: str
    needs: tuple[Key, ...]
    deliver: Callable[[list[Any] | None, ChannelError | None], None]
    since: float = field(default_factory=time.monotonic)
    missing: set[Key] = field(default_factory=set)


class StateTable:
    """Published states, waiting handles and the first failure of one channel."""

    def __init__(self) -> None:
        self.values: dict[Key, Any] = {}
        self.published_at: dict[Key, float] = {}
        self.current: dict[str, str] = {}
        self.failure: ComponentFailed | None = None
        self._waiting: dict[Key, list[Waiter]] = {}

    def set_state(self, component: str, state: str, value: Any = None) -> bool:
        """Publish a state and wake who waits for it; False if it was published before.

        A state is irreversible (paper, section 3.1): the first value stays.
        """
        key = (component, state)
        if key in self.values:
            return False
        self.values[key] = value
        self.published_at[key] = time.monotonic()
        self.current[component] = state
        for waiter in self._waiting.pop(key, ()):
            waiter.missing.discard(key)
            if not waiter.missing:
                self._finish(waiter)
        return True

    def wait(self, waiter: Waiter) -> None:
        """Register a waiter; delivers at once if all is published or the run failed."""
        waiter.missing = {key for key in waiter.needs if key not in self.values}
        if not waiter.missing:
            self._finish(waiter)
        elif self.failure is not None:
            waiter.deliver(None, self.failure)
        else:
            for key in waiter.missing:
                self._waiting.setdefault(key, []).append(waiter)

    def forget(self, waiter: Waiter) -> None:
        """Drop a waiter that gave up (time limit, closed connection)."""
        for key in waiter.missing:
            waiters = self._waiting.get(key)
            if waiters and waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._waiting[key]

    def fail(self, failure: ComponentFailed) -> bool:
        """Fail everybody who waits, now and later; False if a failure came before."""
        if self.failure is not None:
            return False
        self.failure = failure
        self.abandon(failure)
        return True

    def abandon(self, error: ChannelError) -> None:
        """Deliver ``error`` to everybody who waits."""
        for waiter in self.waiters():
            waiter.deliver(None, error)
        self._waiting.clear()

    def waiters(self) -> list[Waiter]:
        """Everybody who waits, each once, longest first."""
        unique = dict.fromkeys(w for waiters in self._waiting.values() for w in waiters)
        return sorted(unique, key=lambda waiter: waiter.since)

    def _finish(self, waiter: Waiter) -> None:
        waiter.deliver([self.values[key] for key in waiter.needs], None)


def label(component: str, index: int | None) -> str:
    """How a component's replica is called in the table: ``core`` or ``worker[0]``."""
    return component if index is None else f"{component}[{index}]"


def name_key(key: Key) -> str:
    """``component.state`` for messages."""
    return f"{key[0]}.{key[1]}"


def name_keys(keys: Iterable[Key]) -> str:
    """The keys for a message, in order."""
    return ", ".join(name_key(key) for key in sorted(keys))
