"""A site's 'when' at run time, on the tiny engine: whoever is told not to apply does nothing."""

import subprocess
import sys

import pytest
import tiny

from cfac.runtime.verify import verify

SPEC = """
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-sites
include: [base.yaml]
chain: []
components:
  worker:
    states:
      - Start
      - Constructed: {after: {state: "worker[i-1].Constructed", schedule: true}}
      - Ready
bind:
  frontend.Ready:
    publish:
      - in: "tinyengine.frontend:Engine.__init__"
        at: after
        call: self._wait_for_core
        when: {param: workers, below: 3}
      - in: "tinyengine.frontend:Engine.__init__"
        at: after
        assign: self.ready
        when: {param: workers, above: 2}
  core.HandleReady:
    publish:
      - in: "tinyengine.core:Core.__init__"
        at: replace_callee
        call: self._export_handle
        when: {param: workers, below: 3}
      - in: "tinyengine.core:Core.__init__"
        at: before
        call: self._wait_for_ready
        when: {param: workers, above: 2}
  worker.Constructed:
    wait: {in: "tinyengine.worker:worker_main", at: entry, when: {param: workers, above: 2}}
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return tiny.patched_copy(tmp_path_factory.mktemp("sites") / "tree", SPEC)


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("workers", [2, 3])
def test_exactly_one_site_applies_in_every_process(engine, tmp_path, method, workers):
    """The parameter is settled in the frontend; the other processes are told its value."""
    delay = "worker[0].Constructed=0.3"
    result = tiny.run(
        engine,
        tmp_path,
        *("--workers", str(workers)),
        TINYENGINE_START_METHOD=method,
        CFAC_DELAY=delay,
    )
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    history = tiny.history(tmp_path)
    states = [f for f in verify(history) if f.kind in ("state", "order")]
    assert states == []
    waited = {(event["c"], event["i"]) for event in history.of("wait")}
    began = {key for key in history.begins if key[1] == "Constructed" and "worker" in key[0]}
    if workers == 2:
        assert waited == began == set()
    else:
        assert waited == {("worker", i) for i in range(3)}
        assert len(began) == 3
        assert verify(history) == []


PASSED_BY = """
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-passed-by
include: [base.yaml]
params:
  script: {type: bool, default: false, from: [{program: [script, go]}]}
components:
  frontend:
    policy: {gc: frozen, until: Ready, when: {param: script, is: true}}
    states: [Start, {Extra: {aux: true}}, ConfigReady, {Ready: {after: core.Ready}}]
  core:
    states: [Start, {Constructed: {after: [frontend.Extra, frontend.ConfigReady]}}, HandleReady,
             {Ready: {after: worker.*.Ready}}]
bind:
  frontend.Extra:
    publish: {in: "tinyengine.frontend:create_config", at: entry, when: {param: script, is: true}}
  core.Constructed: {begin: [], wait: {in: "tinyengine.core:core_main", at: entry}}
"""
COUNTS = """
import gc, sys
from tinyengine import frontend
if __name__ == "__main__":
    before = gc.get_threshold()
    during = []
    make = frontend.Engine._wait_for_core
    def seen(self):
        during.append(gc.get_threshold() == before)
        return make(self)
    frontend.Engine._wait_for_core = seen
    engine = frontend.Engine(2)
    print(engine.add([1, 2, 3]), during)
    engine.close()
"""


def test_a_state_of_which_no_site_applies_is_no_part_of_the_start(tmp_path):
    """Nobody waits for it, verify does not miss it, and a policy's 'when' goes by it, too."""
    engine = tiny.patched_copy(tmp_path / "tree", PASSED_BY)
    script = engine / "script"
    script.write_text(COUNTS)
    for word, untouched in (("go", False), ("stay", True)):
        runs = tmp_path / word
        done = subprocess.run(
            [sys.executable, str(script), word],
            cwd=engine,
            env=tiny.environment(runs),
            capture_output=True,
            text=True,
            timeout=tiny.PATIENCE,
        )
        assert done.stdout == f"6 [{untouched}]\n", done.stderr
        history = tiny.history(runs)
        assert tiny.messages(history) == []
        assert (("frontend", "Extra") in history.publishes) is not untouched


def test_what_is_not_known_counts(engine, tmp_path):
    """Without the told values, a process other than the frontend does as if all applied."""
    plan = engine / "tinyengine" / "_cfac" / "plan.json"
    text = plan.read_text()
    assert '"param:workers"' in text
    copy = tmp_path / "tree"
    import shutil

    shutil.copytree(engine, copy)
    changed = copy / "tinyengine" / "core.py"
    source = changed.read_text()
    line = "import json, os; from cfac.runtime.run import Run; Run.params = lambda self: {}\n"
    changed.write_text(
        source.replace("from tinyengine import _cfac", line + "from tinyengine import _cfac")
    )
    result = tiny.run(copy, tmp_path / "runs", "--workers", "2")
    assert result.returncode == 0, result.stderr
    found = [f.message for f in verify(tiny.history(tmp_path / "runs")) if f.kind == "state"]
    assert found == ["core.HandleReady was published 2 times"]
