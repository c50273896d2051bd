"""The commands on specs with a refinement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from model_files import write_index, write_model

from cfac.compiler.cli import cli

ROOT = Path(__file__).parents[2]
LOADING = str(ROOT / "specs" / "vllm" / "tensor-loading.yaml")
CASES = ROOT / "tests" / "cases" / "safetensors"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three files, twelve tensors, an index."""
    folder = tmp_path / "model"
    write_model(folder, [[100_000, 50_000, 7, 0]] * 3)
    names = {f"t{4 * f + k}": f"m-{f:03}.safetensors" for f in range(3) for k in range(4)}
    write_index(folder, names)
    return folder


def test_check_reads_the_layout(model):
    result = run("check", LOADING, "--model", model, "--chunk-size", "64KiB")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == (
        f"{model}: 12 tensors, 9 chunks of 64 KiB, 15 pieces; requests 9 -> 9, aligned 0 -> 6"
    )


def test_check_of_a_bad_model_names_file_and_tensor():
    result = run("check", LOADING, "--model", CASES / "bad_overlap.safetensors")
    assert result.exit_code == 1
    assert "error[CF620]" in result.output
    assert "bad_overlap.safetensors" in result.output and "tensor 'b'" in result.output
    result = run("check", LOADING, "--model", CASES / "missing_shard.index.json")
    assert result.exit_code == 1 and "error[CF621]" in result.output


@pytest.mark.parametrize("size", ["5000", "0", "-4096", "8 parsecs", "8MB", "2000GiB", ""])
def test_a_chunk_size_that_is_none(size):
    result = run("check", LOADING, "--chunk-size", size)
    assert result.exit_code == 1 and "error[CF623]: --chunk-size" in result.output


def test_compile_writes_a_plan_and_the_layouts_report(model, tmp_path):
    out = tmp_path / "out"
    result = run("compile", LOADING, "--model", model, "-o", out)
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in out.iterdir())
    assert names == ["vllm-tensor-loading.layout.md", "vllm-tensor-loading.plan.json"]
    report = (out / names[0]).read_text()
    assert "12, 3 of them empty" in report
    assert "(auto: " in report  # and why
    assert "| bytes wanted | 450021 | 450021 |" in report
    plan = json.loads((out / names[1]).read_text())
    assert plan["refine"]["tensor"]["chunk_size"] == "auto"
    # The report is about one model on one machine: --check does not compare it.
    assert run("compile", LOADING, "-o", out, "--check").exit_code == 0
    (out / names[1]).write_text("{}")
    assert run("compile", LOADING, "-o", out, "--check").exit_code == 3


def test_compile_of_a_bad_model_writes_nothing(tmp_path):
    out = tmp_path / "out"
    result = run("compile", LOADING, "--model", CASES / "bad_overlap.safetensors", "-o", out)
    assert result.exit_code == 1
    assert not out.exists()


def test_a_spec_without_refine_and_engine_is_still_refused(tmp_path):
    naive = ROOT / "specs" / "tensors" / "naive.yaml"
    result = run("compile", naive, "-o", tmp_path / "out")
    assert result.exit_code == 1 and "CF401" in result.output
    result = run("check", naive, "--model", CASES / "ok_basic.safetensors")
    assert result.exit_code == 1 and "error[CF624]" in result.output


def test_graph_collapses_replicas(model):
    result = run("graph", LOADING, "--model", model, "-f", "mermaid")
    assert result.exit_code == 0
    assert 'subgraph c0["chunk \N{MULTIPLICATION SIGN}chunks"]' in result.output
    assert result.output.count("InMem") == 1
    expanded = run("graph", LOADING, "--model", model, "--chunk-size", "64KiB", "--expand",
                   "-f", "json")  # fmt: skip
    assert expanded.exit_code == 0
    lanes = {lane["id"] for lane in json.loads(expanded.output)["components"]}
    assert {"chunk[8]", "piece[14]", "tensor[11]"} <= lanes
    assert not {"chunk[9]", "piece[15]", "tensor[12]"} & lanes


def test_the_page_shows_the_graph_that_is_drawn_now():
    drawn = run("graph", LOADING, "-f", "mermaid").output
    page = (ROOT / "docs" / "tensors.md").read_text("utf-8")
    assert f"```mermaid\n{drawn}```\n" in page


def test_analyze_predicts_the_pipeline(model, tmp_path):
    pipeline = tmp_path / "spec.yaml"
    pipeline.write_text(
        "apiVersion: cfac/v1\nkind: StartupGraph\nname: pipeline\n"
        f"include: ['{LOADING}']\nrefine: {{tensor: {{depth: 1}}}}\n"
    )
    costs = ["--set", "chunk.InMem=2ms", "--set", "chunk.InGPU=1ms", "--set", "piece.Copied=1ms"]
    sized = ["analyze", pipeline, "--model", model, "--chunk-size", "64KiB", *costs]
    result = run(*sized, "-f", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    # Nine chunks read one after the other; the last one is copied to the device and out of it.
    assert found["predicted"] == 0.020
    text = run(*sized)
    assert "chunk[0].InMem … chunk[8].InMem" in text.output
    plain = run("analyze", pipeline, *costs, "-f", "json")  # an example of four, one chunk each
    assert json.loads(plain.stdout)["predicted"] == 0.010
