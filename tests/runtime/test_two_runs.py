"""One engine in two runs: the one that it begins, and one that it joins (runtime/parts.py).

The tiny engine, patched with its own spec and a switch's in one patch.  The test is the
switch's controller: it makes that run, and publishes what the old model does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny

from cfac.codegen.apply import apply
from cfac.codegen.compile import compile_engine
from cfac.codegen.engine import find_engine
from cfac.compiler import api
from cfac.runtime.boot import attach
from cfac.runtime.errors import ComponentFailed
from cfac.runtime.history import History, read_run
from cfac.runtime.parts import Together, split
from cfac.runtime.run import SWITCH, create_run
from cfac.runtime.session import Place, Session

SPEC = """
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-switch
engine:
  package: tinyengine
  versions: ">=1.4,<2"
  unsupported:
    - {when: {param: scale, is: 13}, reason: thirteen is not described}
channel: {run: joined}
params:
  role: {type: str, default: new}
  ranks: {type: int, default: 1}
  scale: {type: int, default: 0, from: [{value: "handle['scale']", at: "new.*.Start"}]}
components:
  controller: {states: [Start]}
  old: {states: [Start, Freed], process: {spawned_by: controller}}
  new:
    replicas: ranks
    process: {spawned_by: controller}
    states: [Start, EnvReady, {Active: {after: old.Freed}}]
bind:
  old.Freed: {publish: {at: process_exit}}
  new.Start:
    publish:
      in: "tinyengine.worker:worker_main"
      index: rank
      when: {param: role, is: new}
      at: entry
  new.EnvReady:
    publish:
      in: "tinyengine.worker:worker_main"
      index: rank
      when: {param: role, is: new}
      at: before
      call: worker.load
  new.Active:
    wait:
      in: "tinyengine.worker:worker_main"
      index: rank
      when: {param: role, is: new}
      at: before
      call: worker.load
    publish:
      in: "tinyengine.worker:worker_main"
      index: rank
      when: {param: role, is: new}
      at: after
      call: worker.load
"""
OWN = ["startup.yaml", "fast.yaml", "prespawn.yaml"]


def plan_of(*paths: Path) -> dict[str, Any]:
    spec, diagnostics = api.load_together(paths)
    assert spec is not None and not diagnostics.errors, [d.message for d in diagnostics]
    assert api.check(spec).ok
    return api.compile_plan(spec)


@pytest.fixture(scope="module", params=OWN)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both") / "engine"
    shutil.copytree(tiny.SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "switch.yaml").write_text(SPEC)
    spec, diagnostics = api.load_together([folder / request.param, folder / "switch.yaml"])
    assert spec is not None and not diagnostics.errors, [d.message for d in diagnostics]
    found = find_engine(spec, folder, diagnostics)
    assert found is not None
    result = compile_engine(spec, found)
    assert result.ok, [d.message for d in result.diagnostics]
    apply(result.patch, folder)
    return folder


class Switch:
    """The run that another program makes, and its part in it."""

    def __init__(self, engine: Path, runs: Path, ranks: int) -> None:
        os.environ["CFAC_RUNS"] = str(runs)
        try:
            self.run = create_run(plan_of(engine / "switch.yaml"))
        finally:
            del os.environ["CFAC_RUNS"]
        self.session = Session(self.run)
        values = {"role": "new", "ranks": ranks}
        self.run.tell_params(values)
        self.session.post({"op": "params", "values": values})
        self.publish("controller.Start")

    def publish(self, name: str) -> None:
        Place(self.session, name, None).publish()

    def wait(self, *needs: tuple[str, str]) -> None:
        message = {"op": "wait", "who": "test", "needs": [list(need) for need in needs]}
        self.session.wait(message, 300)

    def history(self) -> History:
        return read_run(Path(self.run.folder))


@pytest.fixture
def switch(engine: Path, tmp_path: Path) -> Iterator[Switch]:
    made = Switch(engine, tmp_path / "switches", 2)
    yield made
    made.session.close()


@pytest.fixture(autouse=True)
def ended(tmp_path: Path) -> Iterator[None]:
    yield
    tiny.end_started()
    tiny.end_runs(tmp_path)


def start(engine: Path, runs: Path, switch: Switch, *options: str) -> subprocess.Popen[str]:
    joined = {SWITCH: switch.run.environment()}
    return tiny.start(engine, runs, "--workers", "2", *options, **joined)


def components(history: History) -> set[str]:
    return {event["c"] for event in history.of("publish")}


def test_an_engine_is_in_its_own_run_and_in_the_switchs(
    engine: Path, switch: Switch, tmp_path: Path
) -> None:
    process = start(engine, tmp_path / "runs", switch)
    switch.wait(("new[0]", "EnvReady"), ("new[1]", "EnvReady"))
    tiny.wait_for_state(tmp_path / "runs", "worker[1]", "Constructed")
    assert switch.history().end("new[0]", "Active") is None
    switch.publish("old.Freed")
    out, err = process.communicate("1 2 3\n", timeout=300)
    assert (process.returncode, out) == (0, "serving\n6\n"), err
    assert [line for line in err.splitlines() if "cfac" in line] == err.splitlines()[:1]

    own, joined = tiny.history(tmp_path / "runs"), switch.history()
    assert components(own) == {"frontend", "core", "worker"}
    assert {"new", "old", "controller"} == components(joined)
    assert tiny.messages(own) == []
    freed = joined.end("old", "Freed")
    for rank in range(2):
        assert freed is not None and joined.begins[f"new[{rank}]", "Active"][0] > freed
    assert not list(own.of("fallback"))
    assert set(own.plan.components if own.plan else ()) == {"frontend", "core", "worker"}
    told = json.loads((Path(switch.run.folder) / "params.json").read_text())
    assert told == {"role": "new", "ranks": 2, "scale": 1}


def test_outside_of_a_switch_its_places_are_passed_as_stock(engine: Path, tmp_path: Path) -> None:
    done = tiny.run(engine, tmp_path / "runs", "--workers", "2")
    assert (done.returncode, done.stdout) == (0, "serving\n6\n")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert components(tiny.history(tmp_path / "runs")) == {"frontend", "core", "worker"}


def test_a_worker_that_dies_fails_both_runs(engine: Path, switch: Switch, tmp_path: Path) -> None:
    process = start(engine, tmp_path / "runs", switch)
    switch.wait(("new[0]", "EnvReady"), ("new[1]", "EnvReady"))
    tiny.kill(tiny.wait_for_state(tmp_path / "runs", "worker[0]", "Constructed"))
    with pytest.raises(ComponentFailed, match="SIGKILL"):
        switch.wait(("new[0]", "Active"))
    assert process.wait(300) != 0
    assert tiny.nothing_left(tmp_path / "runs") and tiny.nothing_left(tmp_path / "switches")


def test_a_switch_that_ends_ends_the_engine_that_waits_in_it(
    engine: Path, switch: Switch, tmp_path: Path
) -> None:
    process = start(engine, tmp_path / "runs", switch)
    switch.wait(("new[0]", "EnvReady"), ("new[1]", "EnvReady"))
    switch.session.post({"op": "fail", "c": "old", "error": "the test says so"})
    assert process.wait(300) != 0
    assert tiny.nothing_left(tmp_path / "runs")


def test_an_unsupported_configuration_fails_the_switch_with_its_reason(
    engine: Path, switch: Switch, tmp_path: Path
) -> None:
    program = "from tinyengine.frontend import Engine\nif __name__ == '__main__': Engine(2, 13)\n"
    with pytest.raises(ComponentFailed, match="thirteen is not described"):
        (engine / "thirteen.py").write_text(program)
        subprocess.Popen(
            [sys.executable, "thirteen.py"], cwd=engine, stderr=subprocess.DEVNULL,
            env=tiny.environment(tmp_path / "runs", **{SWITCH: switch.run.environment()}),
        )  # fmt: skip
        switch.wait(("new[0]", "Active"))
    assert tiny.nothing_left(tmp_path / "runs")


def test_the_calls_of_two_runs_are_those_of_one(tmp_path: Path) -> None:
    """What generated code asks for: every call, each from the hooks that it belongs to."""
    vllm = tiny.ROOT / "specs" / "vllm"
    names = ["fast-start", "model-switching"]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(plan_of(*(vllm / f"{name}.yaml" for name in names))))
    both = attach(str(plan))
    assert isinstance(both, Together)
    template = tiny.ROOT / "codegen" / "templates" / "__init__.py.j2"
    asked = set(re.findall(r"\bsession\.(\w+)", template.read_text()))
    assert {"publish", "wait", "take", "use"} <= asked
    for call in asked:
        assert callable(getattr(both, call)), call
    for call in ("start", "context", "deferred", "later", "now", "use", "stop"):
        assert getattr(both, call) == getattr(both.own, call)


def test_a_plans_parts_have_what_is_theirs() -> None:
    vllm = tiny.ROOT / "specs" / "vllm"
    names = ["fast-start", "model-switching", "tensor-loading"]
    parts = split(plan_of(*(vllm / f"{name}.yaml" for name in names)))
    own, alone = parts["own"], plan_of(vllm / "fast-start.yaml")
    assert own["components"] == alone["components"]
    assert own["transitions"] == alone["transitions"] and own["chain"] == alone["chain"]
    assert own["params"].keys() == alone["params"].keys()
    assert [e["reason"] for e in own["engine"]["unsupported"]] == [
        e["reason"] for e in alone["engine"]["unsupported"]
    ]
    joined = parts["joined"]
    assert joined["components"].keys() == {"controller", "old", "new"}
    assert joined["params"].keys() == {"role", "old_ranks", "new_ranks", "device", "executor"}
    assert joined["params"]["executor"]["at"] == ["new.Start", "old.Start"]
    assert own["params"]["executor"]["at"] == ["frontend.ConfigReady"]
    assert "deferred" not in joined["engine"] and not joined["chain"]
