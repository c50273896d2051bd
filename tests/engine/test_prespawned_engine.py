"""Prespawned processes on real vLLM: all created at once, and as stock in what they answer."""

from real_engine import ROOT, tiny

from cfac.runtime.history import read_run
from cfac.runtime.processes import processes_of_run
from cfac.runtime.verify import verify

PRESPAWN = ROOT / "specs" / "vllm" / "prespawn.yaml"
TENSOR_PARALLEL = 2


def test_a_prespawned_start_answers_as_stock_and_conforms(serve, patched):
    stock = serve(None, tensor_parallel=TENSOR_PARALLEL)
    stock.wait_ready()
    expected = [stock.complete(), stock.complete("One two three", 16)]
    stock.stop()

    server = serve(patched(PRESPAWN), tensor_parallel=TENSOR_PARALLEL)
    server.wait_ready()
    assert [server.complete(), server.complete("One two three", 16)] == expected
    run = server.run_folder()
    server.stop()
    assert server.process.returncode == 0
    assert tiny.wait_until(lambda: not processes_of_run(run.name), timeout=60)
    lines = [line for line in server.log.splitlines() if line.startswith("cfac: ")]
    assert len(lines) == 1, lines

    history = read_run(run)
    assert [f"{finding.kind}: {finding.message}" for finding in verify(history)] == []
    assert list(history.of("fallback")) == list(history.of("given_up")) == []
    tree = {e["name"]: (e["pid"], e["ppid"]) for e in history.of("process")}
    assert tree["EngineCore"][1] == history.info["root"]
    workers = [tree[f"VllmWorker-{i}"] for i in range(TENSOR_PARALLEL)]
    assert {parent for _, parent in workers} == {tree["EngineCore"][0]}
    # every process is there before there is a config, and the core has its workers early
    config = history.end("frontend", "ConfigReady")
    assert history.end("core", "Start") < config
    for index in range(TENSOR_PARALLEL):
        assert history.end(f"worker[{index}]", "Start") < config
        assert history.end(f"worker[{index}]", "Imported") < history.end("core", "HandleReady")
