"""Injected delays: how tests make a race happen, or hold a start at one state.

``CFAC_DELAY="worker[0].Constructed=2,core.Ready=5:after"``: seconds to sleep right
before a state is published (or after it).  Never set outside of tests.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Delays:
    """Seconds to sleep around publishes, by ``component.State``."""

    by_state: dict[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def from_environment(cls) -> Delays:
        """Parse ``CFAC_DELAY``; ValueError if it is malformed."""
        delays = cls()
        for item in filter(None, os.environ.get("CFAC_DELAY", "").split(",")):
            state, _, amount = item.partition("=")
            seconds, _, place = amount.partition(":")
            before, after = delays.by_state.get(state, (0.0, 0.0))
            if place == "after":
                delays.by_state[state] = (before, float(seconds))
            else:
                delays.by_state[state] = (float(seconds), after)
        return delays

    def __bool__(self) -> bool:
        return bool(self.by_state)

    def before(self, component: str, state: str) -> None:
        """Sleep before ``component.state`` is published, if asked to."""
        self._sleep(component, state, 0)

    def after(self, component: str, state: str) -> None:
        """Sleep after ``component.state`` was published, if asked to."""
        self._sleep(component, state, 1)

    def _sleep(self, component: str, state: str, place: int) -> None:
        if self.by_state:
            seconds = self.by_state.get(f"{component}.{state}", (0.0, 0.0))[place]
            if seconds:
                time.sleep(seconds)
