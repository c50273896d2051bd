"""Prespawned processes on real vLLM: all created at once, and as stock in what they answer."""

from real_engine import ROOT, as_stock, started

PRESPAWN = ROOT / "specs" / "vllm" / "prespawn.yaml"
TENSOR_PARALLEL = 2


def test_a_prespawned_start_answers_as_stock_and_conforms(serve, patched):
    history = as_stock(serve, patched(PRESPAWN), TENSOR_PARALLEL)
    assert list(history.of("given_up")) == []
    # every process is there before there is a config, and the core has its workers early
    config = history.end("frontend", "ConfigReady")
    begun = started(history)
    assert begun["EngineCore"] < config
    for index in range(TENSOR_PARALLEL):
        assert begun[f"VllmWorker-{index}"] < config
        imported = history.end(f"worker[{index}]", "Imported")
        assert imported < history.end(f"worker[{index}]", "Constructed")
