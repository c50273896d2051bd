"""What the fault matrix takes for stock vLLM's own outcomes, seen on stock vLLM."""

import os
import signal
import time

import pytest
import signals
from real_engine import tiny
from test_matrix import IDLE

#: A process's title, by which stock's are told apart.
TITLES = {
    "core": "VLLM::EngineCore",
    "worker[0]": "VLLM::Worker_TP0",
    "worker[1]": "VLLM::Worker_TP1",
}
#: In the log: the core is under construction, the frontend waits for it.
WAITING = "Initializing a V1 LLM engine"

pytestmark = pytest.mark.soak


def pid_of(server, component):
    if component == "frontend":
        return server.process.pid
    (pid,) = (
        pid
        for pid in signals.session_members(server.process.pid)
        if TITLES[component] in signals.command(pid)
    )
    return pid


@pytest.mark.parametrize(
    ("component", "number"), IDLE, ids=lambda value: getattr(value, "name", value)
)
def test_a_signal_when_idle(serve, component, number):
    """The exit code; SIGKILL of the frontend leaves the others, which cfac's owner ends."""
    server = serve(None, tensor_parallel=2)
    server.wait_ready()
    server.complete()
    os.kill(pid_of(server, component), number)
    assert tiny.wait_until(lambda: not server.running(), timeout=60)
    assert server.process.returncode == IDLE[component, number]
    orphans = (component, number) == ("frontend", signal.SIGKILL)
    assert bool(signals.left_after(server, 10)) == orphans


@pytest.mark.parametrize("number", signals.SIGNALS[:2], ids=lambda number: number.name)
@pytest.mark.parametrize("component", ["frontend", "core"])
def test_a_signal_while_it_starts_is_put_off_or_lost(serve, component, number):
    """It does not end for as long as cfac allows for the whole; a core ends alone."""
    server = serve(None, tensor_parallel=2)
    assert tiny.wait_until(lambda: WAITING in server.log, timeout=300)
    os.kill(pid_of(server, component), number)
    time.sleep(signals.LIMIT)
    assert server.running()
