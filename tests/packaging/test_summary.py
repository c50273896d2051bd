"""pytest --summary, which make soak commits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MADE = """
import pytest

def test_good(record_property): record_property("odd", {(1, 2): 3})
def test_bad(): assert 0
@pytest.mark.skip
def test_skipped(): pass
@pytest.mark.xfail
def test_known(): assert 0
@pytest.fixture
def broken(): raise OSError
def test_error(broken): pass
"""


def test_the_summary_tells_outcomes_durations_and_versions(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "summary.py").write_text((ROOT / "tests" / "summary.py").read_text())
    (tmp_path / "test_made.py").write_text(MADE)
    out = tmp_path / "soak" / "summary.json"
    command = [sys.executable, "-m", "pytest", "-q", str(tmp_path), "--summary", str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    data = json.loads(out.read_text())
    assert data["counts"] == {"passed": 1, "skipped": 1, "xfailed": 1, "failed": 2}
    (run,) = data["runs"]
    assert run["exit_status"] == 1
    assert data["tests"]["test_made.py::test_error"]["outcome"] == "failed"
    assert data["tests"]["test_made.py::test_good"]["seconds"] >= 0
    assert data["tests"]["test_made.py::test_good"]["found"] == "{'odd': {(1, 2): 3}}"
    assert set(run["versions"]) >= {"python", "pytest", "vllm", "commit"}

    (tmp_path / "test_made.py").write_text(MADE.replace("assert 0", "assert 1", 1))
    subprocess.run([*command, "-k", "bad"], cwd=tmp_path, capture_output=True, check=False)
    data = json.loads(out.read_text())
    assert data["counts"] == {"passed": 2, "skipped": 1, "xfailed": 1, "failed": 1}
    bad, good = (data["tests"][f"test_made.py::test_{name}"] for name in ("bad", "good"))
    assert [data["runs"][test["run"]]["exit_status"] for test in (bad, good)] == [0, 1]
    assert bad["outcome"] == good["outcome"] == "passed"

    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert len(json.loads(out.read_text())["runs"]) == 1
