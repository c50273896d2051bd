"""The benchmarks and the vLLM scripts are imported as scripts do it: by their folders."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES / "bench"), str(EXAMPLES / "vllm")]
