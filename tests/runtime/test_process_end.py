"""What the end of a process means to its run: states that are its end, and a released root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny

from cfac.compiler.api import compile_plan, load
from cfac.runtime.history import read_run
from cfac.runtime.run import create_run
from cfac.runtime.session import Place, Session

SPEC = Path(__file__).parents[2] / "specs" / "vllm" / "model-switching.yaml"
PARAMS = {"role": "old", "old_ranks": 1, "new_ranks": 1, "device": "cpu", "executor": "uni"}
CLIENT = """
import sys, time
from cfac.runtime.run import Run
from cfac.runtime.session import Place, Session
session = Session(Run.from_environment())
for state in sys.argv[2:]:
    Place(session, f"{sys.argv[1]}.{state}", 0).publish()
print("joined", flush=True)
sys.stdin.read()
"""
ROOT = """
import json, subprocess, sys
from cfac.runtime.run import create_run
from cfac.runtime.session import Place, Session
run = create_run(json.loads(sys.argv[1]))
session = Session(run)
Place(session, "controller.Start", None).publish()
import json
import os
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], "new", *sys.argv[4:]],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         env={**os.environ, "CFAC_RUN": run.environment()}, start_new_session=True)
child.stdout.readline()
if sys.argv[3] == "release":
    session.release()
print(child.pid, run.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path / "runs"))
    spec, _ = load(SPEC)
    assert spec is not None
    return compile_plan(spec)


def test_all_states_that_are_the_processs_end_are_published(plan):
    run = create_run(plan)
    session = Session(run)
    session.post({"op": "params", "values": PARAMS})
    environment = {**os.environ, "CFAC_RUN": run.environment()}
    child = subprocess.Popen(
        [sys.executable, "-c", CLIENT, "old", "Start", "Active"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
    )  # fmt: skip
    child.communicate()
    session.wait({"op": "wait", "who": "test", "needs": [["old[0]", "Destroyed"]]}, 300)
    history = read_run(Path(run.folder))
    freed, destroyed = history.end("old[0]", "GMemFreed"), history.end("old[0]", "Destroyed")
    assert freed is not None and destroyed is not None and freed <= destroyed
    session.close()


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("release", ["release", "keep"])
def test_only_a_released_run_outlives_its_roots_violent_end(plan, release):
    root = subprocess.Popen(
        [sys.executable, "-c", ROOT, json.dumps(plan), CLIENT, release, "Start", "EnvReady"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert root.stdout is not None
    # The child's standard input is the root's to close: keep it open beyond the root's end.
    pid = int(root.stdout.readline().split()[0])
    keep = os.open(f"/proc/{pid}/fd/0", os.O_WRONLY)
    try:
        root.kill()
        root.wait()
        deadline = time.monotonic() + (300 if release == "keep" else 3)
        while lives(pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert lives(pid) is (release == "release")
    finally:
        os.close(keep)
        if lives(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_released_run_hears_what_a_process_said_before_it_ended(plan):
    """Its owner has not even accepted the connection when the process is gone."""
    run = create_run(plan)
    session = Session(run)
    Place(session, "controller.Start", None).publish()
    owner = tiny.owner_of(Path(run.folder).parent)
    os.kill(owner, signal.SIGSTOP)
    child = subprocess.Popen(
        [sys.executable, "-c", CLIENT, "new", "Start", "EnvReady", "Active"],
        env={**os.environ, "CFAC_RUN": run.environment()},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "joined\n"
    session.release()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    os.kill(owner, signal.SIGCONT)
    deadline = time.monotonic() + tiny.PATIENCE
    while lives(owner) and time.monotonic() < deadline:
        time.sleep(0.05)
    child.communicate()
    history = read_run(Path(run.folder))
    assert [event["components"] for event in history.of("ended")] == [["new[0]"]]
    assert list(history.of("failed")) == []


@pytest.mark.parametrize("release", ["release", "keep"])
@pytest.mark.parametrize("states", [["Start", "EnvReady", "Active"], ["Start", "EnvReady"]])
def test_in_a_released_run_the_end_of_what_is_through_is_no_failure(plan, release, states):
    root = subprocess.Popen(
        [sys.executable, "-c", ROOT, json.dumps(plan), CLIENT, release, *states],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert root.stdout is not None
    pid, folder = root.stdout.readline().split()
    os.kill(int(pid), signal.SIGKILL)
    through = release == "release" and states[-1] == "Active"
    awaited = "ended" if through else "failed"
    deadline = time.monotonic() + 300
    while not list(read_run(Path(folder)).of(awaited)) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)  # a failure would follow its cause
    ended = list(read_run(Path(folder)).of("ended"))
    failed = [event["c"] for event in read_run(Path(folder)).of("failed")]
    root.kill()
    root.wait()
    assert ended and failed == ([] if through else ["new[0]"])
