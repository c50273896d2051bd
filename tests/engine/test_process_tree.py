"""The shipped process tree on real vLLM: same answers, whole traces, the chain holds."""

import os
import re
import shutil
import subprocess

import pytest
from real_engine import ROOT, ask, cfac, tiny, vllm_server

from cfac.runtime.history import read_run
from cfac.runtime.processes import processes_of_run
from cfac.runtime.verify import verify


def messages(folder, **options):
    return [f"{f.kind}: {f.message}" for f in verify(read_run(folder), **options)]


def left_over(run_folder) -> bool:
    return not tiny.wait_until(lambda: not processes_of_run(run_folder.name), timeout=300)


# with one worker also in test_record.py, whose start is recorded
@pytest.mark.parametrize("tensor_parallel", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_patched_answers_as_stock_and_its_trace_is_whole(serve, patched, tensor_parallel):
    copy = patched()
    server = serve(copy, tensor_parallel=tensor_parallel, environment={"CFAC_OBSERVE": "1"})
    server.wait_ready()
    assert ask(server) == serve.stock(tensor_parallel)
    run = server.run_folder()
    server.stop()
    assert server.process.returncode == 0
    assert not left_over(run)

    history = read_run(run)
    assert history.plan.params["workers"] == tensor_parallel
    assert messages(run, chain=True) == []
    declared = 4 + 5 + 3 * tensor_parallel
    assert len(history.publishes) == declared
    assert all(len(times) == 1 for times in history.publishes.values())
    assert "failed" not in [event["e"] for event in history.events]
    # the commands say the same
    assert "follows its spec" in cfac("trace", "verify", str(run))
    assert "and the chain" in cfac("trace", "verify", "--chain", str(run))
    lines = [line for line in server.log.splitlines() if line.startswith("cfac: ")]
    assert len(lines) == 1, lines


def starts_as_stock(serve, server, said):
    server.wait_ready()
    assert [server.complete()] == serve.stock()[:1]
    server.stop()
    assert server.log.count(said) == 1
    assert server.run_folder() is None


def test_uninstalled_it_starts_as_stock(serve, patched):
    starts_as_stock(serve, serve(patched(), installed=False), "cfac cannot be imported")


@pytest.mark.soak  # in make test: tests/runtime/test_boot.py, and the generated package's own
def test_disabled_it_starts_as_stock(serve, patched):
    server = serve(patched(), environment={"CFAC_DISABLE": "1"})
    starts_as_stock(serve, server, "CFAC_DISABLE is set")


OFFLINE = """
import sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    options = dict(enforce_eager=True, dtype="bfloat16", max_model_len=512, max_num_seqs=8, seed=0)
    engines = [LLM(sys.argv[1], **options) for _ in range(2)]
    for engine in engines:
        sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        (answer,) = engine.generate(["The engine starts"], sampling, use_tqdm=False)
        print("ANSWER", list(answer.outputs[0].token_ids))
"""


def test_two_engines_in_one_process_are_two_runs(engine, model, patched, vllm_cache, tmp_path):
    """Offline LLM(...), twice in one process; there is no serve command line to read."""
    script = tmp_path / "two.py"
    script.write_text(OFFLINE)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CFAC_", "VLLM_"))}
    environment |= vllm_server.ENVIRONMENT
    environment |= {
        "CFAC_RUNS": str(tmp_path / "runs"),
        "VLLM_CACHE_ROOT": str(vllm_cache),
        "PYTHONPATH": f"{patched().package}:{ROOT}",
    }
    command = [engine / "bin" / "python", script, model]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr[-5000:]
    answers = [line for line in result.stdout.splitlines() if line.startswith("ANSWER")]
    assert len(answers) == 2
    assert answers[0] == answers[1]
    folders = tiny.run_folders(tmp_path / "runs")
    assert len(folders) == 2
    for folder in folders:
        assert messages(folder, chain=True) == []
        assert not left_over(folder)


def test_unapply_restores_every_byte_and_twice_changes_nothing(engine, patched):
    copy = patched(fresh=True)
    stock = vllm_server.site_packages(engine)

    def differing():
        command = [
            "diff",
            "-rq",
            "-x",
            "__pycache__",
            str(stock / "vllm"),
            str(copy.package / "vllm"),
        ]
        return subprocess.run(command, capture_output=True, text=True).stdout

    assert len(differing().splitlines()) > 3
    before = differing()
    cfac("apply", str(copy.patch), "--engine", str(copy.package))
    assert differing() == before
    cfac("unapply", str(copy.patch), "--engine", str(copy.package))
    assert differing() == ""
    cfac("unapply", str(copy.patch), "--engine", str(copy.package))
    assert differing() == ""


def test_a_renamed_engine_function_is_an_error_with_candidates(engine, tmp_path):
    package = vllm_server.copy_package(engine, ROOT / "build" / "engine" / "test-renamed")
    try:
        source = package / "vllm" / "v1" / "executor" / "multiproc_executor.py"
        text = source.read_text()
        source.unlink()  # a hard link to the engine's own file
        source.write_text(text.replace("def _init_executor(", "def _setup_executor("))
        spec = ROOT / "specs" / "vllm" / "process-tree.yaml"
        out = tmp_path / "patches"
        output = cfac("compile", str(spec), "--engine", str(package), "-o", str(out), expect=1)
        assert re.search(r"process-tree\.yaml:\d+:\d+: error\[CF4\d\d\]", output)
        assert "MultiprocExecutor._setup_executor" in output
        assert not out.exists() or not list(out.iterdir())
    finally:
        shutil.rmtree(package)
