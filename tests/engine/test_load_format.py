"""``--load-format cfac`` on real vLLM: the weights are stock's, and so are the answers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from load_format import plugin_environment
from real_engine import ask, vllm_server

from cfac.runtime.history import read_run


@pytest.fixture
def plugin(tmp_path) -> dict[str, str]:
    folder = tmp_path / "site"
    folder.mkdir()
    return plugin_environment(folder)


def compared(engine: Path, folder: Path, environment: dict[str, str], *only: str):
    """(results of compare_weights.py by name, what it logged)."""
    folder.mkdir()
    script = Path(__file__).with_name("compare_weights.py")
    done = subprocess.run(
        [engine / "bin" / "python", script, folder, *only],
        env=os.environ | vllm_server.ENVIRONMENT | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {result["name"]: result for result in results}, done.stderr


def test_names_order_types_and_bytes_are_those_of_stock(engine, plugin, tmp_path):
    results, log = compared(engine, tmp_path / "checkpoints", plugin)
    refused = {name: results.pop(name) for name in ("damaged", "unknown key", "wrong value")}
    assert len(results) == 15
    assert all(result["same"] and result["tensors"] for result in results.values()), results
    assert "vLLM's own reader" not in log
    # one error for the seventh of twelve files, before any tensor was handed out
    damaged = refused["damaged"]
    assert (damaged["error"], damaged["given"]) == ("HeaderError", 0)
    assert "model-7-of-12.safetensors" in damaged["text"] and "6.c.weight" in damaged["text"]
    assert "load format cfac: {'chunk_sise'}" in refused["unknown key"]["text"]
    assert "distributed is true or false, not 'yes'" in refused["wrong value"]["text"]


def test_without_the_c_library_stock_reads_with_one_line(engine, plugin, tmp_path):
    missing = plugin | {"CFAC_NATIVE_LIBRARY": str(tmp_path / "none.so")}
    results, log = compared(engine, tmp_path / "checkpoints", missing, "one file")
    assert results["one file"]["same"] and results["secondary weights"]["same"]
    assert "vLLM's own reader is used: cfac's C library is missing" in log
    assert results["damaged"]["error"] == "SafetensorError"


def test_two_ranks_answer_as_stock_and_the_chunks_are_in_the_trace(serve, patched, plugin):
    """Together: each byte of the file is read by one rank, and both have all tensors."""
    copy = patched()
    paths = os.pathsep.join([str(copy.package), plugin["PYTHONPATH"]])
    extra = json.dumps({"distributed": True, "chunk_size": 65536})
    server = serve(
        copy,
        tensor_parallel=2,
        environment=plugin | {"PYTHONPATH": paths, "CFAC_OBSERVE": "1"},
        arguments=["--load-format=cfac", f"--model-loader-extra-config={extra}"],
    )
    server.wait_ready()
    assert ask(server) == serve.stock(2)
    run = server.run_folder()
    server.stop()
    assert "vLLM's own reader" not in server.log and "cfac): 100% Completed" in server.log

    history = read_run(run)
    workers = {e["pid"] for e in history.of("process") if e["name"].startswith("VllmWorker")}
    loads = list(history.of("chunks"))
    assert {event["pid"] for event in loads} == workers and len(workers) == 2
    assert {Path(path).name for event in loads for path in event["files"]} == {"model.safetensors"}
    rows = [sorted(row[1:3] for row in event["rows"]) for event in loads]
    assert rows[0] == rows[1] and len(rows[0]) > 10
    for _, _, _, _, begin, in_mem, *_ in (row for event in loads for row in event["rows"]):
        assert begin <= in_mem
    notes = [event["text"] for event in history.of("note")]
    assert sum("loaded 39 tensors" in note for note in notes) == 2, notes
