"""The fast start on real vLLM: forked, and as stock in everything but the time it takes."""

import os
import signal

import pytest
from real_engine import ROOT, tiny

from cfac.runtime.history import read_run
from cfac.runtime.processes import processes_of_run
from cfac.runtime.verify import verify

FAST = ROOT / "specs" / "vllm" / "fast-start.yaml"


def messages(folder, **options):
    return [f"{f.kind}: {f.message}" for f in verify(read_run(folder), **options)]


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_a_forked_start_answers_as_stock_and_conforms(serve, patched, tensor_parallel):
    stock = serve(None, tensor_parallel=tensor_parallel)
    stock.wait_ready()
    expected = [stock.complete(), stock.complete("One two three", 16)]
    stock.stop()

    server = serve(patched(FAST), tensor_parallel=tensor_parallel)
    server.wait_ready()
    assert [server.complete(), server.complete("One two three", 16)] == expected
    run = server.run_folder()
    server.stop()
    assert server.process.returncode == 0
    assert tiny.wait_until(lambda: not processes_of_run(run.name), timeout=60)
    assert messages(run) == []

    history = read_run(run)
    assert list(history.of("fallback")) == []
    tree = {e["name"]: (e["pid"], e["ppid"]) for e in history.of("process")}
    assert tree["EngineCore"][1] == history.info["root"]
    workers = [tree[f"VllmWorker-{i}"] for i in range(tensor_parallel)]
    assert {parent for _, parent in workers} == {tree["EngineCore"][0]}
    # forked before there was a config
    assert history.end("core", "Start") < history.end("frontend", "ConfigReady")
    lines = [line for line in server.log.splitlines() if line.startswith("cfac: ")]
    assert len(lines) == 1, lines


def test_observed_only_it_starts_as_the_engine_does(serve, patched):
    server = serve(patched(FAST), environment={"CFAC_OBSERVE": "1"})
    server.wait_ready()
    server.complete()
    run = server.run_folder()
    server.stop()
    assert messages(run, chain=True) == []
    history = read_run(run)
    assert history.end("core", "Start") > history.end("frontend", "ConfigReady")


def test_a_killed_core_ends_a_forked_start(serve, patched):
    delay = {"CFAC_DELAY": "core.HandleReady=300:after"}
    server = serve(patched(FAST), tensor_parallel=2, environment=delay)
    os.kill(tiny.wait_for_state(server.runs, "core", "HandleReady", timeout=300), signal.SIGKILL)
    run = server.run_folder()
    assert tiny.wait_until(lambda: not processes_of_run(run.name), timeout=40)
    assert tiny.wait_until(lambda: not server.running(), timeout=20)
    assert server.process.returncode != 0
    assert "component core failed" in server.log
    assert "in state HandleReady" in server.log
