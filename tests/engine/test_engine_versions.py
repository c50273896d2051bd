"""The shipped specs on the sources of several engine versions; no engine is imported.

Only the last test, in ``make soak``, starts an engine: vLLM 0.13.0.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from real_engine import ROOT, cfac

sys.path.insert(0, str(ROOT / "examples" / "bench"))

import versions
from sources import WHEELS, fetch

CASES = [(*engine, name) for engine in WHEELS for name in versions.SPECS[engine[0]]]
FIGURES = json.loads((ROOT / "docs" / "figures" / "versions.json").read_text("utf-8"))["engines"]
#: fast-start is written for 0.28 and newer.
OLD = {"0.13.0", "0.20.2"}


@pytest.mark.parametrize(("package", "version", "name"), CASES)
def test_a_spec_binds_and_its_patch_applies_parses_and_comes_out(package, version, name, tmp_path):
    row = versions.examine(versions.spec_file(package, name), fetch(package, version), tmp_path)
    if name == "fast-start" and version in OLD:
        assert len(row["errors"]) == 1 and row["errors"][0].startswith("CF402:")
        return
    assert row["applies"] and row["parses"] and row["restored"]
    assert row["bound"] <= row["declared"]
    if name != "fast-start":  # whole, in every version
        assert row["errors"] == row["warnings"] == row["left_out"] == []
        assert row["bound"] == row["declared"]
    assert bool(row["errors"]) == bool(row["left_out"])
    told = FIGURES[f"{package} {version}"][name]
    for key in ("bound", "declared", "left_out"):
        assert row[key] == told[key], "run examples/bench/versions.py, then docs/make_versions.py"


@pytest.mark.parametrize("version", [version for package, version in WHEELS if package == "vllm"])
def test_check_tells_how_much_is_bound(version):
    spec = versions.spec_file("vllm", "process-tree")
    said = cfac("check", str(spec), "--engine", str(fetch("vllm", version)))
    assert f"9 of 9 transitions bound in vllm {version}" in said


def test_a_name_that_is_wrong_in_one_version_is_an_error_there(tmp_path):
    """``suspend`` and ``sleep``: a callee that was renamed is not skipped in silence."""
    base = versions.spec_file("vllm", "process-tree").read_text("utf-8")
    for old, new in (("call: launch_core_engines}", "call: wait_for_engine_startup}"),):
        assert base.count(old) == 1
        base = base.replace(old, new)
    (tmp_path / "spec.yaml").write_text(base, "utf-8")
    said = cfac(
        *("compile", str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "patches")),
        *("--engine", str(fetch("vllm", "0.13.0")), "--allow-partial"),
        expect=1,
    )
    assert "error[CF405]: frontend.ClientBound publish" in said
    assert "launch_core_engines" in said  # the nearest candidates
    assert not (tmp_path / "patches").exists()


def test_without_the_version_of_a_name_the_core_would_not_be_seen(tmp_path):
    base = versions.spec_file("vllm", "process-tree").read_text("utf-8")
    old = '{is: EngineCore_DP0, when: {version: "<0.18"}}'
    assert old in base
    (tmp_path / "spec.yaml").write_text(
        base.replace(old, "").replace(
            '        - \n        - {is: EngineCore, when: {version: ">=0.18"}}',
            "        - {is: EngineCore}",
        ),
        "utf-8",
    )
    arguments = ["check", str(tmp_path / "spec.yaml"), "--engine"]
    said = cfac(*arguments, str(fetch("vllm", "0.13.0")))
    assert "warning[CF431]: core: vllm 0.13.0 makes no process with name='EngineCore'" in said
    assert "name=f'EngineCore_DP{global_index}'" in said
    assert "CF431" not in cfac(*arguments, str(fetch("vllm", "0.20.2")))


@pytest.mark.soak
def test_0_13_0_starts_with_its_patches():
    """Answers as stock, traces that verify, at one and at two workers; 8 GB the first time."""
    engine = ROOT / "build" / "engine" / "vllm-0.13.0"
    model = ROOT / "build" / "models" / "tiny-0.13.0"
    examples = ROOT / "examples" / "vllm"
    setup = [sys.executable, examples / "setup_engine.py", "--version", "0.13.0", "--dir", engine]
    subprocess.run(setup, check=True)
    make = [engine / "bin" / "python", examples / "make_model.py", model]
    subprocess.run(make, check=True)
    outcome = versions.boot(engine, model, ["process-tree", "prespawn"])
    states = {key: start["states"] for key, start in outcome.items()}
    # With two workers, each has a DeviceOpened of its own; on CPU it opens nothing.
    assert states == {
        "stock 1": 0, "process-tree 1": 9, "prespawn 1": 10,
        "stock 2": 0, "process-tree 2": 15, "prespawn 2": 20,
    }  # fmt: skip
