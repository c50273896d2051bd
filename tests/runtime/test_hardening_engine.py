"""Trouble on the engine's side: signals, threads, forks, ends, values; and its reports."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
import tiny
from trouble import in_thread

from cfac.runtime import processes, stall
from cfac.runtime import run as runs_module
from cfac.runtime.channel import Channel
from cfac.runtime.client import Client
from cfac.runtime.errors import ChannelError, ComponentFailed, OwnerLost, WaitTimeout
from cfac.runtime.plan import Plan
from cfac.runtime.table import StateTable, Waiter
from cfac.runtime.trace import TraceWriter

# -- the engine's side: signals, threads, forks ----------------------------------------


def test_a_publish_in_the_middle_of_a_publish(channel, monkeypatch):
    """A signal handler or a finalizer that stops an engine may run at any point."""
    client = channel._backend._client
    connect = Client._connect

    def interrupted(self):
        monkeypatch.setattr(Client, "_connect", connect)
        client.post({"op": "set", "c": "B", "s": "B1", "v": 2})
        return connect(self)

    monkeypatch.setattr(Client, "_connect", interrupted)
    assert in_thread(lambda: channel.set_state("A", "A1", 1)) is None
    assert channel.wait_states([("A", "A1"), ("B", "B1")], timeout=tiny.PATIENCE) == [1, 2]


def test_an_interrupted_publish_leaves_no_half_message(channel):
    client = channel._backend._client
    channel.set_state("A", "A1")
    sender = client._sender

    class Interrupted:
        def sendall(self, frame):
            sender.send(frame[:3])
            raise KeyboardInterrupt

        def close(self):
            sender.close()

    client._sender = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        channel.set_state("A", "A2")
    channel.set_state("A", "A3", 3)
    assert channel.wait_state("A", "A3", timeout=tiny.PATIENCE) == 3


def test_a_thread_channel_says_that_it_does_not_cross_a_fork():
    with Channel("thread") as channel:
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            try:
                channel.wait_state("A", "A1")
            except ChannelError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_closing_while_waits_arrive_loses_nobody():
    for _ in range(30):
        channel = Channel("thread")
        threads = [
            threading.Thread(target=lambda c=channel: _swallow(c), daemon=True) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        channel.close()
        for thread in threads:
            thread.join(tiny.PATIENCE)
            assert not thread.is_alive()


def _swallow(channel):
    with contextlib.suppress(OwnerLost):
        while True:
            with contextlib.suppress(WaitTimeout):
                channel.wait_state("A", "A1", timeout=0)


def test_a_wait_that_comes_right_after_the_close_raises():
    """The check for a closed channel and the queueing of the wait are one step."""
    channel = Channel("thread")
    backend = channel._backend
    put = backend._events.put

    class Slow:
        def get(self, *arguments, **keywords):
            return events.get(*arguments, **keywords)

        def put(self, event):
            if event is not None:
                threading.Thread(target=channel.close, daemon=True).start()
                time.sleep(0.2)
            put(event)

    events = backend._events
    backend._events = Slow()
    assert isinstance(in_thread(lambda: channel.wait_state("A", "A1")), OwnerLost)


@pytest.mark.parametrize("transport", ["thread", "process"])
def test_names_that_are_no_names_hurt_only_who_uses_them(runs, transport):
    with Channel(transport) as channel:
        for call in (
            lambda: channel.set_state(["A"], "A1"),
            lambda: channel.wait_state({"A": 1}, "A1", timeout=tiny.PATIENCE),
        ):
            assert isinstance(in_thread(call), Exception)
        channel.set_state("A", "A1", 1)
        assert in_thread(lambda: channel.wait_state("A", "A1", timeout=tiny.PATIENCE)) == 1


def test_a_cancelled_task_is_cancelled_even_if_the_channel_is_closed():
    async def main():
        channel = Channel("thread")
        task = asyncio.create_task(channel.wait_state_async("A", "A1"))
        await asyncio.sleep(0.05)
        backend = channel._backend
        backend._closed = True  # closed by another thread, which has not come further yet
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        finally:
            backend._closed = False
            channel.close()

    assert asyncio.run(main()) == "cancelled"


def test_threads_that_record_first_together(tmp_path, monkeypatch):
    opened = os.open

    def slowly(*arguments):
        time.sleep(0.05)
        return opened(*arguments)

    monkeypatch.setattr(os, "open", slowly)
    trace = TraceWriter(str(tmp_path))
    outcome = []

    def write():
        try:
            outcome.append(trace.write("note"))
        except OSError as error:
            outcome.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [o for o in outcome if isinstance(o, OSError)]
    lines = (tmp_path / f"{os.getpid()}.jsonl").read_text().splitlines()
    assert sum('"e":"note"' in line for line in lines) == 8
    assert sum('"e":"process"' in line for line in lines) == 1
    trace.close()


def test_a_client_that_goes_away_is_no_message(channel, capfd, runs):
    """Cancelling a wait whose answer is on its way resets the connection."""
    import socket

    from cfac.runtime.wire import pack

    channel.set_state("A", "A1", "x" * 100)
    channel.wait_state("A", "A1", timeout=tiny.PATIENCE)
    run = channel._backend.run
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as raw:
            with runs_module.reachable(run.socket_path) as address:
                raw.connect(address)
            raw.sendall(pack({"op": "hello", "token": run.token, "name": "x"}))
            wait = {"op": "wait", "who": "w", "needs": [["A", "A1"]], "id": 1}
            raw.sendall(pack(wait))
            time.sleep(0.05)
    channel.wait_state("A", "A1", timeout=tiny.PATIENCE)
    assert "dropped" not in capfd.readouterr().err


# -- processes that come and go --------------------------------------------------------


def test_a_root_that_begins_another_run_keeps_one_owner(runs):
    """A notebook that tries to start its engine again and again, for days."""
    from cfac.runtime.session import Session

    sessions = []
    for _ in range(3):
        session = Session(runs_module.create_run(PLAN))
        session.post({"op": "set", "c": "a", "s": "Start"})
        sessions.append(session)
    owners = [owner_pid_of(session.run) for session in sessions]
    for session in sessions[:2]:
        session.close()
    assert tiny.wait_until(lambda: all(map(tiny.gone, owners[:2])))
    assert not tiny.gone(owners[2])
    sessions[2].post({"op": "dissolve", "reason": "the test is over"})
    assert tiny.wait_until(lambda: tiny.gone(owners[2]))


def owner_pid_of(run):
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                if run.id.encode() in file.read():
                    return int(entry)
    raise AssertionError("no owner")


def reference(component, state, index=("none", None)):
    return {"component": component, "state": state, "index": list(index)}


def component(*states, replicas=None):
    return {"states": list(states), "replicas": replicas, "when": None, "process": None}


def plan_data(components, transitions, transport="thread", groups=None):
    return {
        "cfac": 1,
        "name": "small",
        "engine": None,
        "params": {},
        "components": components,
        "transitions": {
            name: {"after": [], "run": None, "exit": False} | entry
            for name, entry in transitions.items()
        },
        "groups": groups or {},
        "layouts": {},
        "chain": [],
        "transport": transport,
    }


PLAN = plan_data({"a": component("Start", "Up")}, {"a.Up": {}})


@pytest.fixture
def steps(tmp_path, monkeypatch):
    (tmp_path / "hardening_steps.py").write_text(
        "import asyncio, os, sys\n"
        "def leave(): sys.exit(0)\n"
        "def vanish(): os._exit(0)\n"
        "def opaque(): return object()\n"
        "def fine(): return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield str(tmp_path)
    sys.modules.pop("hardening_steps", None)


@pytest.mark.parametrize("transport", ["thread", "process"])
def test_a_callable_that_exits_fails_the_others(runs, steps, transport):
    from cfac.runtime.executor import run_plan

    data = plan_data(
        {"a": component("Start", "Up"), "b": component("Start", "Up")},
        {
            "a.Up": {"run": "hardening_steps:leave"},
            "b.Up": {"after": [reference("a", "Up")], "run": "hardening_steps:fine"},
        },
        transport,
    )
    outcome = in_thread(lambda: run_plan(Plan.of(data), steps))
    assert set(outcome.errors) == {"a", "b"}


@pytest.mark.parametrize("name", ["leave", "vanish", "opaque"])
def test_a_process_that_ends_well_but_too_early_is_an_error(runs, steps, name):
    from cfac.runtime.executor import run_plan

    data = plan_data(
        {"a": component("Start", "Up")}, {"a.Up": {"run": f"hardening_steps:{name}"}}, "process"
    )
    outcome = in_thread(lambda: run_plan(Plan.of(data), steps))
    assert set(outcome.errors) == {"a"}
    assert tiny.nothing_left(runs)
    assert tiny.wait_until(lambda: not _owners(runs)), "the owner stays"


def _owners(runs):
    with contextlib.suppress(AssertionError):
        return tiny.owner_of(runs)
    return None


def test_a_group_leaves_out_replicas_that_are_not_there(runs):
    from cfac.runtime.executor import run_plan

    data = plan_data(
        {"w": component("Start", "Up", replicas=2), "x": component("Start", "Up")},
        {"w.Up": {}, "x.Up": {}},
        groups={
            "g": {
                "each": False,
                "of": [reference("w", "Up", ("at", 5)), reference("x", "Up")],
            }
        },
    )
    outcome = in_thread(lambda: run_plan(Plan.of(data)))
    assert outcome.errors == {}


def test_more_components_than_descriptors(runs):
    from cfac.runtime.executor import run_plan

    data = plan_data({"w": component("Start", "Up", replicas=300)}, {"w.Up": {}})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        outcome = in_thread(lambda: run_plan(Plan.of(data)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert outcome.errors == {}
    (folder,) = tiny.run_folders(runs)
    assert len(tiny.read_run(folder).publishes) == 600


def test_of_processes_that_ended_together_the_killed_one_is_named(runs):
    """The engine ends a killed worker's siblings, perhaps before a busy owner looks."""
    from cfac.runtime.session import Session

    data = plan_data({name: component("Start", "Up") for name in "abc"}, {"c.Up": {}})
    run = runs_module.create_run(data)
    code = (
        "import sys, time\n"
        "from cfac.runtime.run import Run\n"
        "from cfac.runtime.session import Session\n"
        "session = Session(Run(*sys.argv[2:]))\n"
        "session.post({'op': 'set', 'c': sys.argv[1], 's': 'Start'})\n"
        "time.sleep(60)\n"
    )
    children = {
        name: subprocess.Popen(
            [sys.executable, "-c", code, name, run.id, run.token, run.folder], cwd=tiny.ROOT
        )
        for name in "abc"
    }
    session = Session(run)
    needs = {"op": "wait", "who": "x", "needs": [[name, "Start"] for name in "abc"]}
    session.wait(needs, tiny.PATIENCE)
    owner = owner_pid_of(run)
    os.kill(owner, signal.SIGSTOP)
    children["b"].kill()
    for name in "ac":
        children[name].terminate()
    for child in children.values():
        child.wait(tiny.PATIENCE)
    os.kill(owner, signal.SIGCONT)
    with pytest.raises(ComponentFailed, match=r"component b failed: .*SIGKILL"):
        session.wait({"op": "wait", "who": "x", "needs": [["c", "Up"]]}, tiny.PATIENCE)
    session.post({"op": "dissolve", "reason": "the test is over"})


def test_an_end_waits_for_the_end_that_explains_it(runs, monkeypatch):
    """A killed process closes its pipes, the engine reacts, and only then it is seen dead."""
    import socket

    from cfac.runtime.owner import Owner

    run = runs_module.create_run(
        plan_data({name: component("Start", "Up") for name in "ab"}, {}), owner=False
    )
    children = {name: subprocess.Popen(["sleep", "60"]) for name in "ab"}
    with socket.socket(socket.AF_UNIX) as listener:
        owner = Owner(listener, run.id, run.token, run.folder, os.getpid())
        for name, child in children.items():
            owner.family.join(child.pid, name)
            owner.family.host(child.pid, name)
        monkeypatch.setattr(processes, "is_exiting", lambda pid: pid == children["b"].pid)
        children["a"].terminate()
        os.waitid(os.P_PID, children["a"].pid, os.WEXITED | os.WNOWAIT)
        owner.family._on_end()
        assert owner.table.failure is None
        children["b"].kill()
        os.waitid(os.P_PID, children["b"].pid, os.WEXITED | os.WNOWAIT)
        owner.family._on_end()
        assert owner.table.failure.component == "b"
    for child in children.values():
        child.wait()


# -- stall reports -----------------------------------------------------------------------


def stalled(components, transitions, needs):
    plan = Plan.of(plan_data(components, transitions))
    table = StateTable()
    waiter = Waiter("somebody", needs, lambda *_: None)
    table.wait(waiter)
    return in_thread(lambda: stall.describe_stall(waiter, table, plan, {}))


def test_the_report_of_a_wide_and_deep_graph_is_short():
    """30 layers of 3: there are 3**30 ways down."""
    names = [[f"c{layer}x{k}" for k in range(3)] for layer in range(30)]
    components = {name: component("Start", "Up") for layer in names for name in layer}
    transitions = {
        f"{name}.Up": {"after": [reference(below, "Up") for below in lower]}
        for lower, layer in zip([[], *names], names, strict=False)
        for name in layer
    }
    text = stalled(components, transitions, ((names[-1][0], "Up"),))
    assert "somebody waits for c29x0.Up" in text
    assert len(text.splitlines()) <= stall.MAX_LINES


def test_the_report_of_a_long_chain_is_short():
    components = {"w": component("Start", "Up", replicas=3000)}
    transitions = {"w.Up": {"after": [reference("w", "Up", ("offset", -1))]}}
    text = stalled(components, transitions, (("w[2999]", "Up"),))
    assert len(text.splitlines()) <= stall.MAX_LINES


def test_the_report_of_states_that_the_plan_does_not_know():
    text = stalled({"a": component("Start", "Up")}, {"a.Up": {}}, (("a", "Typo"),))
    assert "somebody waits for a.Typo" in text


# -- what generated lines hand over ----------------------------------------------------


@pytest.fixture
def hooks(runs, monkeypatch):
    from cfac.runtime.boot import Hooks

    monkeypatch.delenv("CFAC_RUN", raising=False)
    data = plan_data({"a": component("Start", "Up", "Ready")}, {"a.Up": {}, "a.Ready": {}})
    made = Hooks(Plan.of(data))
    made.publish("a.Start")
    yield made
    made.session.post({"op": "dissolve", "reason": "the test is over"})
    os.environ.pop("CFAC_RUN", None)


@pytest.mark.parametrize("value", [object(), "x" * (17 << 20), 1 / 3, ZeroDivisionError()])
def test_a_state_is_published_even_if_its_value_is_not(hooks, value):
    """Who waits for it would wait for ever."""

    def compute():
        if isinstance(value, Exception):
            raise value
        return value

    hooks.publish("a.Up", value=compute)
    with Channel.of_run(hooks.session.run) as channel:
        found = in_thread(lambda: channel.wait_state("a", "Up", timeout=tiny.PATIENCE))
    assert found == (1 / 3 if value == 1 / 3 else None)


def test_a_result_that_claims_any_attribute_reaches_the_engine_as_it_is(hooks):
    class Proxy:
        def __getattr__(self, name):
            return lambda: None

    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(name)

    for result in (Proxy(), Hostile()):
        assert hooks.replaced("a.Up", lambda result=result: result)() is result
