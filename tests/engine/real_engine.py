"""What the tests on a real engine share, beside the fixtures in conftest.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "vllm"))
sys.path.insert(0, str(ROOT / "tests" / "runtime"))

import server as vllm_server  # noqa: E402
import tiny  # noqa: E402

__all__ = ["ROOT", "Patched", "cfac", "tiny", "vllm_server"]


class Patched:
    """A patched copy of the engine's package."""

    def __init__(self, package: Path, patch: Path) -> None:
        self.package = package
        self.patch = patch


def cfac(*arguments: str, expect: int = 0, env: dict[str, str] | None = None) -> str:
    """Run the real command; its output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
    command = [sys.executable, "-m", "cfac.compiler.cli", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == expect, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr
