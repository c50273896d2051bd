"""``pytest --summary FILE``: which tests ran, with what outcome and how long, as JSON to commit.

A session adds to what the file says: its tests replace their earlier outcomes, others keep
theirs, and each test names its run (when, on what, at which commit).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAMP = "build/engine/vllm-0.32.0/cfac-engine-ready"
#: Of a test's three phases, the outcome that says the most.
WEIGHT = ["passed", "skipped", "xfailed", "failed"]


class Summary:
    """Collects reports; writes the file when the session ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        xfailed = report.skipped and hasattr(report, "wasxfail")
        outcome = "xfailed" if xfailed else str(report.outcome)
        entry = self.tests.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        entry["outcome"] = max(str(entry["outcome"]), outcome, key=WEIGHT.index)
        entry["seconds"] = round(float(entry["seconds"]) + report.duration, 2)
        if report.user_properties:  # what a test found, by record_property
            entry["found"] = plain(dict(report.user_properties))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        run = {"date": now, "versions": versions(), "exit_status": int(exitstatus)}
        runs, tests = self.earlier()
        tests |= {name: {**entry, "run": len(runs)} for name, entry in self.tests.items()}
        used = sorted({int(entry["run"]) for entry in tests.values()})
        runs = [[*runs, run][number] for number in used]
        for entry in tests.values():
            entry["run"] = used.index(int(entry["run"]))
        outcomes = [str(entry["outcome"]) for entry in tests.values()]
        data = {
            "counts": {name: outcomes.count(name) for name in WEIGHT if name in outcomes},
            "seconds": round(sum(float(entry["seconds"]) for entry in tests.values()), 1),
            "runs": runs,
            "tests": dict(sorted(tests.items())),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")

    def earlier(self) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
        """The runs and tests of earlier sessions."""
        if not self.path.exists():
            return [], {}
        data = json.loads(self.path.read_text("utf-8"))
        return data["runs"], data["tests"]


def plain(found: dict[str, Any]) -> object:
    """What JSON can have of it: one test's odd findings must not lose the session's outcomes."""
    try:
        json.dumps(found)
    except (TypeError, ValueError):
        return repr(found)
    return found


def versions() -> dict[str, str]:
    """What the tests ran on."""
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    stamp = ROOT / STAMP
    return {
        "commit": commit.stdout.strip() or "unknown",
        "vllm": stamp.read_text().strip() if stamp.exists() else "none",
        "python": platform.python_version(),
        "pytest": metadata.version("pytest"),
        "linux": platform.release(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
    }
