"""The fast start on real vLLM: forked, and as stock in everything but the time it takes."""

import pytest
from real_engine import ROOT, as_stock, started, tiny

from cfac.runtime.history import read_run

FAST = ROOT / "specs" / "vllm" / "fast-start.yaml"


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_a_forked_start_answers_as_stock_and_conforms(serve, patched, tensor_parallel):
    history = as_stock(serve, patched(FAST), tensor_parallel)
    # forked before there was a config
    assert started(history)["EngineCore"] < history.end("frontend", "ConfigReady")


@pytest.mark.parametrize("name", ["patch", "hook"])
def test_observed_only_it_starts_as_the_engine_does(serve, back_end, name):
    server = serve(back_end(name)(FAST), environment={"CFAC_OBSERVE": "1"})
    server.wait_ready()
    server.complete()
    run = server.run_folder()
    server.stop()
    history = read_run(run)
    assert tiny.messages(history, chain=True) == []
    assert history.end("core", "Start") > history.end("frontend", "ConfigReady")
