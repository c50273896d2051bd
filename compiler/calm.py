"""A pause of Python's cyclic garbage collector while a large model is worked on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def calm() -> Iterator[None]:
    """No collections inside: the passes make millions of objects and no garbage in cycles.

    The collector visits all of them again and again, so that time grows faster than the
    graph.  Inside another pause, or where it is off anyway, this does nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
