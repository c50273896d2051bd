"""What an engine reads before anything else; here, how long its slow parts take."""

from __future__ import annotations

import os

#: Seconds that each process spends on "imports" and each worker on "weights".
SLOW = float(os.environ.get("TINYENGINE_SLOW", "0.05"))
START_METHOD = os.environ.get("TINYENGINE_START_METHOD", "spawn")
