"""The ``gc: frozen`` policy: the cyclic collector rests while an engine starts.

While the policy is open the first generation's threshold is so high that the
collector practically never runs (imports create objects that live for ever, and
looking at them again and again took a fifth of a start).  It is not switched off:
whatever happens to the start, nothing leaks without bound.  Closing it freezes the
heap that the start has made and gives the thresholds back.
"""

from __future__ import annotations

import atexit
import gc

_RESTING = 200_000


class Collector:
    """The policy's state in one process; a forked child inherits it and closes its own."""

    def __init__(self) -> None:
        self._saved: tuple[int, int, int] | None = None
        self._frozen = False

    @property
    def resting(self) -> bool:
        """Whether the policy is open."""
        return self._saved is not None

    def rest(self) -> None:
        """Open the policy; again is no change."""
        if self._saved is None:
            self._saved = gc.get_threshold()
            gc.set_threshold(_RESTING, *self._saved[1:])

    def freeze(self) -> None:
        """Before a fork: move what exists out of the collector's sight (gc.freeze)."""
        if self._saved is not None:
            self._freeze()

    def wake(self) -> None:
        """Close the policy: the heap so far is frozen, the thresholds are as before."""
        if self._saved is not None:
            self._freeze()
            gc.set_threshold(*self._saved)
            self._saved = None

    def _freeze(self) -> None:
        gc.freeze()
        if not self._frozen:
            self._frozen = True
            # Native modules report what is left at the exit as leaked.
            atexit.register(gc.unfreeze)
