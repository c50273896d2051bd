"""``cfac analyze``: its output, its errors, and what really ran.

Update the golden files with ``pytest tests/compiler/test_analyze_cli.py --update-golden``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded_runs import component, plan, write

from cfac.compiler.analyze import total
from cfac.compiler.cli import cli
from cfac.runtime.history import read_run

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases" / "analyze"
QUICKSTART = ROOT / "examples" / "quickstart"
GOLDEN = {
    "tree": ["tree.yaml"],
    "tree-uni": ["tree.yaml", "--param", "executor=uni"],
    "tree-cores": ["tree.yaml", "--cores", "2", "--no-core", "worker.*.Ready", "--param", "tp=3"],
    "tree-what-if": ["tree.yaml", "--set", "core.Imported=12s", "--set", "worker[1].Ready=4s",
                     "--without", "core.Ready:frontend.Ready", "--top", "2"],
    "merged": ["merged.yaml"],
    "started": ["started.yaml", "--cores", "1"],
    "merged-set": ["merged.yaml", "--set", "bring-up[1]=90ms", "--set", "b.Ready=2ms"],
}  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(cli, ["analyze", *map(str, arguments)])


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name, golden, monkeypatch):
    monkeypatch.chdir(CASES)
    result = run(*GOLDEN[name])
    assert result.exit_code == 0, result.output
    assert result.output.isascii()
    golden(CASES / f"{name}.txt", f"$ cfac analyze {' '.join(GOLDEN[name])}\n{result.output}")


@pytest.mark.parametrize("name", ["tree-what-if", "started", "merged"])
def test_golden_json(name, golden, monkeypatch):
    monkeypatch.chdir(CASES)
    result = run(*GOLDEN[name], "--format", "json")
    assert result.exit_code == 0, result.output
    golden(CASES / f"{name}.json", result.stdout)


def test_json_and_text_say_the_same(monkeypatch):
    monkeypatch.chdir(CASES)
    for arguments in GOLDEN.values():
        data = json.loads(run(*arguments, "-f", "json").stdout)
        text = run(*arguments, "--top", "99").stdout
        times = re.search(r"^predicted +([\d.]+) (m?s) ", text, re.MULTILINE)
        assert times is not None
        scale = {"s": 1, "ms": 1e3}[times[2]]
        assert float(times[1]) == pytest.approx(data["predicted"] * scale, abs=1e-3)
        for step in data["critical_path"]:
            assert re.search(rf"^{re.escape(step['transition'])} ", text, re.MULTILINE)
        for fall in data["blame"]:
            assert f"  {fall['transition']} " in text
        assert [line[6:] for line in text.splitlines() if line.startswith("note: ")] == data[
            "notes"
        ]


def test_the_sums_of_the_tree_by_hand(monkeypatch):
    monkeypatch.chdir(CASES)
    data = json.loads(run("tree.yaml", "-f", "json").stdout)
    assert data["chain"] == pytest.approx(7 + (6 + 0.3) + 0.5 + (8 + 1.5) + 2 + 0.1)
    assert data["predicted"] == pytest.approx(max(7 + 0.5, 6.3 + 0.5, 8) + 1.5 + 2 + 0.1)


# -- errors -----------------------------------------------------------------------------

WRONG = {
    "--set core.Constucted=1s": "the spec has no transition core.Constucted "
    "(did you mean 'core.Constructed'?)",
    "--set worker[0].Raedy=1s": "no transition worker[0].Raedy (did you mean 'worker.Ready'?)",
    "--set core.Start=1s": "core.Start is where core starts: no transition enters it",
    "--set worker[7].Ready=1s": "worker[7].Ready names no replica that is there",
    "--set worker.Ready=1s --param executor=uni": "worker.Ready: worker is absent with these",
    "--set core.Ready=soon": "'soon' is not a duration (write 1.5s",
    "--set core.Ready": "'core.Ready' is not TRANSITION=TIME",
    "--set =1s": "the spec has no transition",
    "--without core.Ready": "'core.Ready' is not AWAITED:WAITING",
    "--without core.Raedy:frontend.Ready": "no transition core.Raedy (did you mean 'core.Ready'?)",
    "--without frontend.Ready:core.Ready": "(did you mean core.Ready:frontend.Ready?)",
    "--without core.Configured:core.Ready": "core.Ready comes after core.Configured by its "
    "component's own order, which stays",
    "--without frontend.ConfigReady:worker.Ready": "worker.Ready does not wait for "
    "frontend.ConfigReady: it waits for core.Configured",
    "--without core.Ready:frontend.ConfigReady": "frontend.ConfigReady does not wait for "
    "core.Ready: it waits for nothing",
    "--param tpp=2": "the spec has no parameter 'tpp' (did you mean 'tp'?)",
    "--param tp=two": "--param 'tp=two': invalid literal",
    "--param tp": "--param 'tp' is not PARAM=VALUE",
    "--param tp=-1": "tp is -1: a count is 0 or more",
    "--cores 0": "0 is not in the range",
    "--no-core core.Ready": "--no-core has a meaning only with --cores",
    "--cores 2 --no-core core.Raedy": "no transition core.Raedy (did you mean 'core.Ready'?)",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_usage_errors_have_a_hint(arguments):
    result = run(CASES / "tree.yaml", *arguments.split())
    assert result.exit_code == 2, result.output
    assert WRONG[arguments] in " ".join(result.output.split())


def test_a_spec_with_errors_is_not_analyzed(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text((CASES / "tree.yaml").read_text().replace("after: core.Ready", "after: c.R"))
    result = run(path)
    assert result.exit_code == 1 and "CF201" in result.output and "predicted" not in result.output


def test_a_cyclic_spec_is_not_analyzed(tmp_path):
    text = (CASES / "tree.yaml").read_text().replace("7s}", "7s, after: core.Ready}")
    (tmp_path / "spec.yaml").write_text(text)
    result = run(tmp_path / "spec.yaml")
    assert result.exit_code == 1 and "CF301" in result.output and "predicted" not in result.output


def test_runs_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path))
    result = run(CASES / "tree.yaml", "--trace", "nosuch")
    assert result.exit_code == 1 and "called 'nosuch'" in result.output
    folder = write(tmp_path / "run", None, ["publish a.Start"])
    result = run(CASES / "tree.yaml", "--trace", folder)
    assert result.exit_code == 1 and "the run has no plan" in result.output
    write(folder, plan({"a": component(["Start", "One"])}), ["publish a.Start"])
    (folder / "plan.json").write_text('{"cfac": 1, "params": {}}')
    result = run(CASES / "tree.yaml", "--trace", folder)
    assert result.exit_code == 1 and "damaged" in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_run_of_another_spec_is_all_warning(tmp_path):
    made = plan({"a": component(["Start", "One"])})
    folder = write(tmp_path / "run", made, ["publish a.Start", "publish a.One"])
    text = re.sub(r"cost: [\w.]+,? ?", "", (CASES / "tree.yaml").read_text())
    (tmp_path / "spec.yaml").write_text(text)
    result = run(tmp_path / "spec.yaml", "--trace", folder)
    assert result.exit_code == 0
    (warning,) = result.stderr.splitlines()
    assert warning == (
        "warning: no cost, counted as 0: frontend.ConfigReady, frontend.Ready, core.Imported, "
        "core.Constructed, core.Configured, core.Ready, worker.*.Constructed, worker.*.Ready"
    )
    assert "predicted  0.000 s" in result.stdout


# -- for real ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["threads", "coroutines"])
def test_the_quick_start_takes_what_was_predicted(name, tmp_path, monkeypatch):
    """A sleeps twice 0.2 s and B twice 0.1 s: A is the critical path, whatever the load."""
    spec = QUICKSTART / f"{name}.yaml"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "CFAC_RUNS": str(tmp_path)}
    command = [sys.executable, "-m", "cfac.compiler.cli", "run", str(spec)]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path))
    (folder,) = (path.parent for path in tmp_path.glob("*/run.json"))
    result = run(spec, "--trace", folder.name, "-f", "json")
    assert result.exit_code == 0 and result.stderr == ""
    data = json.loads(result.stdout)
    measured = total(read_run(folder)) / 1e9
    assert data["runs"][0]["total"] == measured
    sleeps = {"A.A1": 0.2, "A.A2": 0.2, "B.B1": 0.1, "B.B2": 0.1}
    assert all(row["cost"] >= sleeps[row["transition"]] for row in data["transitions"])
    # a path is no longer than the run, and the run is little else than the path
    assert 0.4 <= data["predicted"] <= measured <= 5 * data["predicted"]
    assert data["chain"] >= sum(sleeps.values())
    assert data["predicted"] < data["chain"]


def test_analyze_needs_no_networkx():
    """The pass is built on lists of integers: nothing in it imports networkx."""
    folder = ROOT / "compiler" / "analyze"
    assert not [p.name for p in folder.glob("*.py") if "networkx" in p.read_text("utf-8")]
