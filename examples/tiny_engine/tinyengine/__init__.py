"""A toy engine with a real engine's process tree: frontend, core, workers.

It starts one after the other because its control flow says so, as real engines do,
and answers one kind of request: the sum of some numbers, each worker adding a part.
"""

from __future__ import annotations

import tinyengine.settings  # noqa: F401

__version__ = "1.4.0"
