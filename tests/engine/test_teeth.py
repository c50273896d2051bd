"""The proof has teeth on the real engine."""

import re
import shutil

from real_engine import ROOT, Patched, cfac, tiny, vllm_server

from cfac.runtime.history import read_run
from cfac.runtime.processes import processes_of_run
from cfac.runtime.verify import verify

SPECS = ROOT / "tests" / "engine" / "specs"
DELAY = {"CFAC_DELAY": "worker[0].Constructed=5"}


def found(folder):
    return [f"{f.kind}: {f.message}" for f in verify(read_run(folder))]


def test_an_enforced_order_holds_and_a_deleted_wait_is_caught(serve, patched):
    enforced = patched(SPECS / "enforced.yaml")
    server = serve(enforced, tensor_parallel=2, environment=DELAY)
    server.wait_ready()
    server.complete()
    run = server.run_folder()
    server.stop()
    assert found(run) == []
    history = read_run(run)
    first, second = (history.end(f"worker[{i}]", "Constructed") for i in range(2))
    assert second > first

    fresh = patched(SPECS / "enforced.yaml", fresh=True)
    broken = Patched(fresh.package, fresh.patch)
    source = broken.package / "vllm" / "v1" / "executor" / "multiproc_executor.py"
    lines = source.read_text().splitlines(keepends=True)
    kept = [line for line in lines if "cfac:worker.Constructed:wait" not in line]
    assert len(kept) == len(lines) - 1
    source.write_text("".join(kept))
    server = serve(broken, tensor_parallel=2, environment=DELAY)
    server.wait_ready()
    run = server.run_folder()
    server.stop()
    (finding,) = found(run)
    rule = re.escape("dependency: worker[1].Constructed after worker[0].Constructed: it began ")
    assert re.match(rule, finding)
    output = cfac("trace", "verify", str(run), expect=1)
    assert "worker[1].Constructed after worker[0].Constructed" in output


def test_the_impossible_wait_is_refused_by_check():
    output = cfac("check", str(SPECS / "refused.yaml"), expect=1)
    assert "error[CF301]" in output
    assert "frontend.Ready" in output
    assert "the chain has the opposite order" in output


def test_the_same_wait_undeclared_deadlocks_and_is_explained(serve, patched):
    cfac("check", str(SPECS / "deadlock.yaml"))
    copy = patched(SPECS / "deadlock.yaml")
    limits = {"CFAC_STALL": "3", "CFAC_WAIT_TIMEOUT": "8"}
    server = serve(copy, environment=limits)
    assert tiny.wait_until(lambda: not server.running(), timeout=300)
    run = server.run_folder()
    assert server.process.returncode != 0
    log = server.log
    assert "core.HandleReady has waited 3 s" in log
    assert "core.HandleReady waits for frontend.Ready: frontend is in ClientBound since" in log
    assert tiny.wait_until(lambda: not processes_of_run(run.name), timeout=300)


def test_the_deleted_copy_was_a_copy(engine):
    """The tests above edit patched copies made of hard links: the engine itself is intact."""
    site = vllm_server.site_packages(engine)
    assert not (site / "vllm" / "_cfac").exists()
    source = site / "vllm" / "v1" / "executor" / "multiproc_executor.py"
    assert "_cfac" not in source.read_text()
    assert shutil.which("diff")
