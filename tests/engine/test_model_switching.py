"""The switching spec on the sources of several engine versions; no engine is imported."""

from __future__ import annotations

import sys

import pytest
from real_engine import ROOT

sys.path.insert(0, str(ROOT / "examples" / "bench"))

import versions
from sources import WHEELS, fetch


@pytest.mark.parametrize("version", [version for package, version in WHEELS if package == "vllm"])
def test_it_binds_and_its_patch_applies_parses_and_comes_out(version, tmp_path):
    spec = versions.spec_file("vllm", "model-switching")
    row = versions.examine(spec, fetch("vllm", version), tmp_path)
    assert row["errors"] == row["warnings"] == row["left_out"] == []
    assert row["bound"] == row["declared"]
    assert row["applies"] and row["parses"] and row["restored"]
