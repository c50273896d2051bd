"""kill -9 of a real run's owner, at every declared state: the engine lives.

All of it runs in ``make soak``; a sample, with one worker, in ``make test``.  Signals to
the engine's own processes are in test_matrix.py.
"""

import os
import signal

import pytest
import signals
from real_engine import tiny
from test_matrix import SPECS

ALL = [(name, *where) for name, spec in SPECS.items() for where in signals.spec_states(spec)]
SAMPLE = {("process-tree", "core", "HandleReady"), ("fast-start", "core", "Constructed")}


def named(cases):
    return [pytest.param(*case, id=f"{case[0]}:{case[1]}.{case[2]}") for case in cases]


def run_case(serve, patched, name, component, state, workers):
    server = serve(patched(SPECS[name]), tensor_parallel=workers)
    tiny.wait_for_state(server.runs, component, state, timeout=300)
    os.kill(tiny.owner_of(server.runs), signal.SIGKILL)
    server.wait_ready()
    assert server.complete()["tokens"]
    log = server.log  # at its stop the stock engine logs a traceback of its own, at times
    server.stop()
    assert "Traceback" not in log
    if (component, state) != ("frontend", "Ready"):  # otherwise nothing was left to say
        assert "nothing is observed from here on" in server.log
    assert signals.left_after(server) == []


@pytest.mark.soak
@pytest.mark.parametrize(("name", "component", "state"), named(ALL))
def test_the_owner_killed_at_a_state_leaves_the_engine_alive(
    serve, patched, name, component, state
):
    run_case(serve, patched, name, component, state, 2)


@pytest.mark.parametrize(("name", "component", "state"), named(sorted(SAMPLE)))
def test_the_owner_killed_sampled(serve, patched, name, component, state):
    run_case(serve, patched, name, component, state, 1)
