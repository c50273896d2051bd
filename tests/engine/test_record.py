"""Recording what a real vLLM imports, and the recording that is shipped."""

import os

from real_engine import ROOT, ask, cfac, tiny, vllm_server

from cfac.compiler.record import from_run
from cfac.compiler.recordings import parse
from cfac.runtime.history import read_run

TREE = ROOT / "specs" / "vllm" / "process-tree.yaml"
SHIPPED = ROOT / "specs" / "vllm" / "fast-start.imports.json"


def test_a_start_is_recorded_and_the_shipped_recording_holds(serve, patched, tmp_path):
    server = serve(patched(TREE), environment={"CFAC_RECORD": "imports", "CFAC_OBSERVE": "1"})
    server.wait_ready()
    assert ask(server) == serve.stock()
    run = server.run_folder()
    server.stop()
    assert server.process.returncode == 0
    history = read_run(run)
    assert tiny.messages(history, chain=True) == []
    assert len(history.publishes) == 4 + 5 + 3

    full = from_run(history)
    assert full.engine == "vllm" and full.version == "0.32.0"
    until = {
        (component, interval.until): set(interval.modules)
        for component, intervals in full.components.items()
        for interval in intervals
    }
    assert "vllm.engine.arg_utils" in until["frontend", "ConfigReady"]
    assert "vllm.v1.engine.core" in until["core", "Constructed"]
    # lazily, by its qualified name, when the worker is made
    assert "vllm.v1.worker.cpu_model_runner" in until["worker", "Ready"]
    assert "vllm.v1.worker.cpu_model_runner" not in full.modules("frontend")
    # the HTTP app and what the first request needs
    assert "vllm.entrypoints.openai.completion.api_router" in until["frontend", None]
    importers = full.modules("worker")
    assert importers["vllm.v1.worker.cpu_model_runner"] == "vllm.v1.worker.cpu_worker"

    written = tmp_path / "tree.imports.json"
    options = ["--run", str(run), "-o", str(written)]
    said = cfac(
        "record", "--imports", str(TREE), *options, env=os.environ | vllm_server.ENVIRONMENT
    )
    assert "vllm 0.32.0, 1 start" in said
    found = parse(written.read_text())
    assert "vllm.v1.worker.cpu_worker" in found.modules("worker")
    # implied by the one above
    assert "vllm.v1.worker.cpu_model_runner" not in found.modules("worker")
    for component, modules in ((name, found.modules(name)) for name in found.components):
        assert 0 < len(modules) < len(full.modules(component)) / 10

    shipped = parse(SHIPPED.read_text())
    assert shipped.version == full.version and shipped.runs > 1
    for component in shipped.components:
        strange = shipped.modules(component).keys() - full.modules(component).keys()
        assert not strange, (component, sorted(strange))
