"""Signals during a start that an engine would lose; children that are not adopted yet."""

import signal
import time

import pytest
import tiny

from cfac.runtime.verify import verify

FAST = (tiny.SOURCE / "fast.yaml").read_text().replace("startup.yaml", "base.yaml")

#: As vLLM's zmq_socket_ctx does: the first interrupt is taken for the end of the wait.
LOSES = """
import signal, sys, time
from tinyengine import frontend

def interrupt(number, frame):
    raise KeyboardInterrupt

wait = frontend.Engine._wait_for_core

def lossy(self):
    print("waiting", flush=True)
    try:
        wait(self)
    except KeyboardInterrupt:
        print("lost", flush=True)
        wait(self)

frontend.Engine._wait_for_core = lossy

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    before = signal.getsignal(signal.SIGTERM)
    try:
        engine = frontend.Engine(1)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        time.sleep(float(sys.argv[1]))
        sys.exit(3)
    print(engine.add([1, 2]), signal.getsignal(signal.SIGTERM) is before, flush=True)
    engine.close()
"""
#: As asyncio's runner does: the first SIGINT is only noted.  It comes with the first state.
AT_ONCE = """
import os, signal, sys
from cfac.runtime.session import Session
from tinyengine import frontend

seen = 0
post = Session.post

def noted(number, frame):
    global seen
    seen += 1
    if seen > 1:
        raise KeyboardInterrupt

def then_signal(session, message):
    post(session, message)
    if message["op"] == "set" and not seen:
        os.kill(os.getpid(), signal.SIGINT)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, noted)
    Session.post = then_signal
    try:
        frontend.Engine(1)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(3)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    tree = tiny.patched_copy(tmp_path_factory.mktemp("interrupts") / "tree", FAST)
    (tree / "lossy.py").write_text(LOSES)
    (tree / "at_once.py").write_text(AT_ONCE)
    return tree


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_lost_signal_is_sent_again(launched, runs, number):
    process = launched("lossy.py", "0", CFAC_DELAY="core.HandleReady=120")
    assert process.stdout.readline() == "waiting\n"
    tiny.wait_for_state(runs, "core", "Constructed")
    process.send_signal(number)
    out, err = process.communicate(timeout=tiny.PATIENCE)
    assert (process.returncode, out) == (3, "lost\ninterrupted\n"), err
    assert f"{number.name} did not end the start: it is sent again" in err
    assert tiny.nothing_left(runs)


def test_a_signal_that_comes_as_soon_as_a_state_is_seen_is_heard(launched):
    process = launched("at_once.py", CFAC_DELAY="core.HandleReady=120")
    out, err = process.communicate(timeout=tiny.PATIENCE)
    assert (out, process.returncode) == ("interrupted\n", 3), err


def test_once_the_start_was_left_nothing_is_sent_again(launched, runs):
    """The script has caught its error and goes on: it must not be interrupted there."""
    process = launched("lossy.py", "4", CFAC_DELAY="core.HandleReady=120")
    assert process.stdout.readline() == "waiting\n"
    core = tiny.wait_for_state(runs, "core", "Constructed")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "lost\n"
    assert process.stdout.readline() == "interrupted\n"
    tiny.kill(core)
    out, err = process.communicate(timeout=tiny.PATIENCE)
    assert (process.returncode, out) == (3, ""), err
    assert err.count("is sent again") == 1


def test_a_ready_engine_has_its_own_handlers_back(launched, runs):
    process = launched("lossy.py", "0")
    out, err = process.communicate(timeout=tiny.PATIENCE)
    assert (process.returncode, out) == (0, "waiting\n3 True\n"), err
    assert "sent again" not in err


def test_observed_only_nothing_is_sent_again(launched, runs):
    process = launched("lossy.py", "0", CFAC_OBSERVE="1", CFAC_DELAY="core.HandleReady=5")
    assert process.stdout.readline() == "waiting\n"
    tiny.wait_for_state(runs, "core", "Constructed")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=tiny.PATIENCE)
    assert (process.returncode, out) == (0, "lost\n3 True\n"), err
    assert "sent again" not in err


def test_an_early_child_that_dies_in_its_first_state_is_replaced(engine, runs):
    process = tiny.start(engine, runs, TINYENGINE_SLOW="4", CFAC_DELAY="core.Start=4:after")
    tiny.kill(tiny.wait_for_state(runs, "core", "Start"))
    out, err = process.communicate("1 2 3\n", timeout=tiny.PATIENCE)
    assert (process.returncode, out) == (0, "serving\n6\n"), err
    assert "core is started by the engine itself" in err
    assert "failed" not in err
    assert [finding.message for finding in verify(tiny.history(runs))] == []
    assert tiny.nothing_left(runs)


def test_an_exit_does_not_wait_for_an_early_child_at_work(engine, runs):
    """Its imports may take seconds; it would see the end of its pipe only then."""
    process = tiny.start(engine, runs, TINYENGINE_SLOW="30", CFAC_DELAY="core.Start=120:after")
    core = tiny.wait_for_state(runs, "core", "Start")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=tiny.PATIENCE)
    assert process.returncode != 0
    assert tiny.gone(core)
    assert tiny.nothing_left(runs)


HANDLERS = """
import signal
from tinyengine import core, frontend

class Core(core.Core):
    def __init__(self, *arguments):
        print("core", signal.getsignal(signal.SIGTERM).name, signal.getsignal(signal.SIGUSR1).name,
              signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
        super().__init__(*arguments)

core.Core = Core

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    engine = frontend.Engine(1)
    engine.close()
"""


def test_a_forked_child_has_the_handlers_of_a_new_program(engine, runs):
    result = tiny.run_script(engine, runs, HANDLERS)
    assert result.stdout == "core SIG_DFL SIG_DFL True\n", result.stderr
