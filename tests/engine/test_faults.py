"""kill -9 of every process of a real start, at its declared states and when idle.

A sample runs in ``make test``; all of it in ``make soak``.  The rest of the run must
end within seconds, with an error that names the dead component and its state, and
leave nothing that carries the run's id.  The owner's death is the exception: the
engine lives.
"""

import os
import signal
import time

import pytest
from real_engine import tiny

from cfac.runtime.processes import processes_of_run

#: A process held at a state by an injected delay, so that it is killed right there.
HOLD = 300

FRONTEND = ["Start", "ConfigReady", "ClientBound", "Ready"]
CORE = ["Start", "Constructed", "Configured", "HandleReady", "Ready"]
WORKER = ["Start", "Constructed", "Ready"]
ALL = [
    *(("frontend", state) for state in FRONTEND),
    *(("core", state) for state in CORE),
    *((f"worker[{i}]", state) for i in range(2) for state in WORKER),
]
SAMPLE = [("frontend", "ClientBound"), ("core", "HandleReady"), ("worker[1]", "Constructed")]
IDLE_SAMPLE = ["worker[0]"]


def cases(everything, sample):
    soak = pytest.mark.soak
    ids = [e if isinstance(e, str) else ".".join(e) for e in everything]
    return [
        pytest.param(case, id=name, marks=() if case in sample else soak)
        for case, name in zip(everything, ids, strict=True)
    ]


def wait_for_state(server, component, state):
    return tiny.wait_for_state(server.runs, component, state, timeout=300)


def ends_cleanly(server, seconds=40):
    """The run's processes all end; how long that took."""
    run = server.run_folder()
    begun = time.monotonic()
    ended = tiny.wait_until(lambda: not processes_of_run(run.name), timeout=seconds)
    assert ended, f"left: {processes_of_run(run.name)}\n{server.log[-4000:]}"
    return time.monotonic() - begun


def says(server, component, state):
    """Whether the log names the dead component and state; the owner may be a moment late."""
    failed, where = f"component {component} failed", f"in state {state}"
    return tiny.wait_until(lambda: failed in server.log and where in server.log, timeout=10)


@pytest.mark.parametrize("case", cases(ALL, SAMPLE))
def test_killed_at_a_state(serve, patched, case):
    component, state = case
    delay = {"CFAC_DELAY": f"{component}.{state}={HOLD}:after"}
    server = serve(patched(), tensor_parallel=2, environment=delay)
    pid = wait_for_state(server, component, state)
    os.kill(pid, signal.SIGKILL)
    ends_cleanly(server)
    assert tiny.wait_until(lambda: not server.running(), timeout=20)
    assert server.process.returncode != 0
    assert says(server, component, state)


@pytest.mark.parametrize(
    "component", cases(["frontend", "core", "worker[0]", "worker[1]"], IDLE_SAMPLE)
)
def test_killed_when_ready_and_idle(serve, patched, component):
    server = serve(patched(), tensor_parallel=2)
    server.wait_ready()
    server.complete()
    pid = wait_for_state(server, component, "Ready")
    os.kill(pid, signal.SIGKILL)
    ends_cleanly(server)
    assert tiny.wait_until(lambda: not server.running(), timeout=20)
    assert says(server, component, "Ready")


@pytest.mark.parametrize("case", cases(ALL, [("core", "HandleReady")]))
def test_the_owner_killed_at_a_state_leaves_the_engine_alive(serve, patched, case):
    component, state = case
    server = serve(patched(), tensor_parallel=2)
    wait_for_state(server, component, state)
    os.kill(tiny.owner_of(server.runs), signal.SIGKILL)
    server.wait_ready()
    assert server.complete()["tokens"]
    log = server.log  # at its stop the stock engine logs a traceback of its own, at times
    server.stop()
    assert "Traceback" not in log
    if (component, state) != ("frontend", "Ready"):  # otherwise nothing was left to say
        assert "nothing is observed from here on" in server.log
