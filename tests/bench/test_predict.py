"""examples/bench/predict.py on the tiny engine: costs of its own starts, measured prespawned."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "runtime"))

import tiny  # noqa: E402

SPEC = ROOT / "examples" / "tiny_engine" / "prespawn.yaml"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run folder of the engine's own schedule, and one that followed the spec."""
    base = tmp_path_factory.mktemp("predict")
    text = SPEC.read_text().replace("startup.yaml", "base.yaml")
    engine = tiny.patched_copy(base / "tree", text)
    found = []
    for name, extra in (("stock", {"CFAC_OBSERVE": "1"}), ("prespawned", {})):
        result = tiny.run(engine, base / name, "--workers", "2", TINYENGINE_SLOW="0.3", **extra)
        assert result.returncode == 0, result.stderr
        found += tiny.run_folders(base / name)
    return found


def predict(*arguments):
    command = [sys.executable, str(ROOT / "examples" / "bench" / "predict.py"), "--spec", str(SPEC)]
    environment = tiny.environment(ROOT)
    return subprocess.run(
        [*command, *map(str, arguments)], env=environment, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip


def test_a_prediction_beside_what_was_measured(recorded, tmp_path):
    stock, measured = recorded
    out = tmp_path / "out.json"
    # the workers sleep in their function, not in an import: that is no birth's work
    result = predict("--stock", stock, "--measured", measured, "--json", out,
                     "--set", "worker.*.Imported=30ms")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    data = json.loads(out.read_text())
    chain = data["predicted"]["T_chain, predicted"]
    free = data["predicted"]["T_CFA, cores without limit"]
    alone = data["predicted"]["T_CFA, declared dependencies alone"]
    bound = data["predicted"]["T_CFA, 2 cores, at least"]
    # four sleeps one after the other; births are in the stock run, and in no transition
    assert 4 * 0.3 <= chain["seconds"] <= data["stock"]
    assert 3 * 0.3 <= alone["seconds"] <= free["seconds"] <= bound["seconds"] + 1e-9
    assert free["seconds"] <= chain["seconds"] + 0.3
    for name, real in (("T_chain, predicted", "stock"), ("T_CFA, cores without limit", "measured")):
        figure = data["predicted"][name]
        wanted = 100 * (figure["seconds"] / data[real] - 1)
        assert figure["error_percent"] == pytest.approx(wanted)
        shown = rf"{re.escape(name)} +{figure['seconds']:.3f} +{re.escape(f'{wanted:+.1f}')}%"
        assert re.search(shown, result.stdout)
    assert data["measured"] < 100 * free["seconds"]


def test_runs_in_the_wrong_place_are_told(recorded):
    stock, measured = recorded
    result = predict("--stock", measured, "--measured", stock)
    assert result.returncode == 0
    assert "stock run " in result.stderr and "without CFAC_OBSERVE=1" in result.stderr
    assert "measured run " in result.stderr and "with CFAC_OBSERVE=1" in result.stderr


def test_wrong_arguments_are_one_line(recorded, tmp_path):
    stock, measured = recorded
    result = predict("--stock", "nosuchrun", "--measured", measured)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    result = predict("--stock", stock, "--measured", measured, "--set", "core.Raedy=1s")
    assert result.returncode == 1 and "did you mean 'core.Ready'" in result.stderr
