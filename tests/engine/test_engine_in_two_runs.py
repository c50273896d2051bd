"""A real vLLM in two runs: its own, with the fast start, and a switch's, with one patch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from load_format import plugin_environment
from real_engine import ROOT, tiny

from cfac.compiler import api
from cfac.runtime.history import read_run
from cfac.runtime.processes import processes_of_run
from cfac.runtime.run import SWITCH, create_run
from cfac.runtime.session import Place, Session

SPECS = ROOT / "specs" / "vllm"
TOGETHER = [SPECS / f"{name}.yaml" for name in ("fast-start", "model-switching", "tensor-loading")]


@pytest.fixture
def switch(tmp_path, monkeypatch):
    """A switch's run, whose controller is the test; the old model is at Active."""
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path / "switches"))
    spec, _ = api.load(TOGETHER[1])
    run = create_run(api.compile_plan(spec))
    session = Session(run)
    values = {"role": "new", "old_ranks": 1, "new_ranks": 1}
    run.tell_params(values)
    session.post({"op": "params", "values": values})
    for name, index in (("controller.Start", None), ("old.Start", 0), ("old.Active", 0)):
        Place(session, name, index).publish()
    yield session
    session.release()


def wait(session: Session, *needs: list[str]) -> None:
    session.wait({"op": "wait", "who": "test", "needs": [*needs]}, 400)


def test_it_starts_fast_waits_in_the_switch_and_loads_in_chunks(serve, patched, switch, tmp_path):
    copy = patched(*TOGETHER)
    plugin = plugin_environment(tmp_path)
    plugin["PYTHONPATH"] = os.pathsep.join([str(copy.package), plugin["PYTHONPATH"]])
    server = serve(
        copy, environment=plugin | {SWITCH: switch.run.environment()},
        arguments=["--load-format", "cfac"],
    )  # fmt: skip
    wait(switch, ["new[0]", "EnvReady"])
    worker = tiny.wait_for_state(server.runs, "worker[0]", "Constructed")
    folder = Path(switch.run.folder)
    assert tiny.wait_until(lambda: [e["pid"] for e in read_run(folder).of("wait")] == [worker])
    waits = read_run(folder)
    assert waits.begins == {} and waits.end("new[0]", "Active") is None
    Place(switch, "old.GMemFreed", 0).publish()
    wait(switch, ["new[0]", "Active"])
    server.wait_ready()
    assert server.complete()["text"]

    run = server.run_folder()
    own, joined = read_run(run), read_run(Path(switch.run.folder))
    assert set(own.plan.components) == {"frontend", "core", "worker"}
    assert {event["c"] for event in own.of("publish")} == {"frontend", "core", "worker"}
    assert tiny.messages(own) == [] and list(own.of("fallback")) == []
    assert own.end("frontend", "IdleDone") is not None
    assert any("loaded" in event["text"] for event in own.of("note"))
    freed, begun = joined.end("old[0]", "GMemFreed"), joined.begins["new[0]", "Active"][0]
    assert joined.end("new[0]", "EnvReady") < freed < begun < joined.end("new[0]", "Active")
    told = json.loads((Path(switch.run.folder) / "params.json").read_text())
    assert told["device"] == "cpu" and told["role"] == "new"
    switch.release()  # the switch is over: the engine lives on, with the switch's owner
    assert server.complete()["text"] and server.running()
    server.stop()
    assert server.process.returncode == 0
    assert tiny.wait_until(lambda: not processes_of_run(run.name), timeout=300)
    assert tiny.wait_until(lambda: not processes_of_run(switch.run.id), timeout=300)
