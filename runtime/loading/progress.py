"""A line on stderr that says how far a load is."""

from __future__ import annotations

import sys
import time
from typing import Final

_EVERY: Final = 0.1  # seconds between two drawings
_WIDTH: Final = 24


class Progress:
    """Draws at most ten times a second; nothing at all where it is not shown."""

    def __init__(self, total: int, tensors: int, shown: bool | None) -> None:
        self.total, self.tensors = total, tensors
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.bytes = self.loaded = 0
        self._start = time.monotonic()
        self._drawn = 0.0

    def add(self, size: int) -> None:
        """One more tensor, of ``size`` bytes."""
        self.bytes += size
        self.loaded += 1
        if not self.shown:
            return
        now = time.monotonic()
        if now - self._drawn >= _EVERY:
            self._drawn = now
            self._draw("\r")

    def end(self) -> None:
        """Draw the last state, and leave the line."""
        if self.shown:
            self._draw("\r", "\n")

    def _draw(self, before: str, after: str = "") -> None:
        share = self.bytes / self.total if self.total else 1.0
        bar = "#" * int(share * _WIDTH)
        done, total = self.bytes / 1e9, self.total / 1e9
        seconds = max(time.monotonic() - self._start, 1e-9)
        line = (
            f"{before}loading {share:4.0%} |{bar:<{_WIDTH}}| {self.loaded}/{self.tensors} tensors, "
            f"{done:.2f}/{total:.2f} GB, {done / seconds:.2f} GB/s"
        )
        try:
            sys.stderr.write(line + after)
            sys.stderr.flush()
        except OSError:  # a closed terminal does not end a load
            self.shown = False
