"""The fast start of an offline LLM(...): its process is the user's, its workers are forked."""

import sys

from real_engine import ROOT, tiny

from cfac.runtime.history import read_run
from cfac.runtime.processes import processes_of_run

sys.path.insert(0, str(ROOT / "examples" / "vllm"))

from offline import Offline

FAST = ROOT / "specs" / "vllm" / "fast-start.yaml"
#: A slow machine is no failure.
PATIENCE = 1200


def answers(engine, model, cache, package=None):
    """Two completions of an LLM(...), the folder of its run if it has one, and its log."""
    paths = [ROOT] if package else []
    with Offline(engine, model, package=package, paths=paths, cache=cache) as llm:
        llm.wait_ready(PATIENCE)
        found = [llm.complete(), llm.complete("One two three", 16)]
        run = read_run(llm.run_folder()) if llm.run_folder() else None
        assert llm.stop() == 0
        if run is not None:
            assert tiny.wait_until(lambda: not processes_of_run(run.folder.name), timeout=300)
            run = read_run(run.folder)
        return found, run, llm.log


def test_an_offline_start_forks_its_workers_and_answers_as_stock(
    engine, model, vllm_cache, patched
):
    expected, run, _ = answers(engine, model, vllm_cache)
    assert run is None
    found, history, log = answers(engine, model, vllm_cache, patched(FAST).package)
    assert found == expected
    assert tiny.messages(history) == []
    assert list(history.of("fallback")) == []
    # the user's process is not forked, and its collector is left alone
    assert ("frontend", "CommonImported") not in history.publishes
    assert history.end("core", "Start") > history.end("frontend", "ConfigReady")
    tree = {e["name"]: (e["pid"], e["ppid"]) for e in history.of("process")}
    assert tree["EngineCore"][1] == history.info["root"]
    assert tree["VllmWorker-0"][1] == tree["EngineCore"][0]
    # forked: nothing of vLLM was left to import between its birth and its first state
    starts = [history.end("worker[0]", state) for state in ("Start", "Constructed")]
    assert starts[1] - starts[0] < history.end("core", "Constructed") - history.end("core", "Start")
    said = [line for line in log.splitlines() if line.startswith("cfac: ")]
    assert len(said) == 1, said
