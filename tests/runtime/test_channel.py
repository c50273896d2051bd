"""The same calls in threads, processes and coroutines (paper, Figures 3 and 16)."""

import asyncio
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time

import pytest

from cfac.runtime.channel import Channel
from cfac.runtime.errors import ChannelError, ComponentFailed, OwnerLost, WaitTimeout
from cfac.runtime.processes import processes_of_run

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


@pytest.fixture(params=["thread", "process"])
def channel(request, tmp_path, monkeypatch):
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path))
    with Channel(request.param) as made:
        yield made


@pytest.fixture
def process_channel(tmp_path, monkeypatch):
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path))
    with Channel("process") as made:
        yield made


def test_wait_returns_the_value_at_once_if_published(channel):
    channel.set_state("A", "A1", {"port": 1})
    assert channel.wait_state("A", "A1") == {"port": 1}


def test_wait_blocks_until_published(channel):
    order = []

    def component_b():
        channel.wait_state("A", "A1")
        order.append("B2")

    thread = threading.Thread(target=component_b)
    thread.start()
    time.sleep(0.05)
    order.append("A1")
    channel.set_state("A", "A1")
    thread.join()
    assert order == ["A1", "B2"]


def test_several_waits_in_one(channel):
    channel.set_state("A", "A1", 1)
    channel.set_state("B", "B1", 2)
    assert channel.wait_states([("B", "B1"), ("A", "A1")]) == [2, 1]
    assert channel.wait_states([]) == []


def test_a_timed_out_wait_says_who_waits_for_whom(channel):
    channel.set_state("A", "A1")
    with pytest.raises(WaitTimeout, match=r"B\.B2 waits for A\.A2: A is in A1 since"):
        channel.wait_state("A", "A2", timeout=0.05, who="B.B2")
    channel.set_state("A", "A2", 7)
    assert channel.wait_state("A", "A2", timeout=5) == 7


def test_a_failure_reaches_everybody_with_its_cause(channel):
    errors = []

    def component(name):
        try:
            channel.wait_state("A", "A2", who=name)
        except ComponentFailed as error:
            errors.append(str(error))

    threads = [threading.Thread(target=component, args=(name,)) for name in "BCD"]
    for thread in threads:
        thread.start()
    channel.set_state("A", "A1")
    channel.fail("A", ValueError("no such device"))
    for thread in threads:
        thread.join()
    assert errors == ["component A failed: ValueError: no such device in state A1"] * 3
    with pytest.raises(ComponentFailed):
        channel.wait_state("X", "X1")


def test_coroutines_use_the_same_calls(channel):
    async def component_a():
        await asyncio.sleep(0.02)
        channel.set_state("A", "A1", "from A")

    async def component_b():
        return await channel.wait_state_async("A", "A1")

    async def main():
        _, value = await asyncio.gather(component_a(), component_b())
        with pytest.raises(WaitTimeout):
            await channel.wait_state_async("A", "A9", timeout=0.05)
        return value

    assert asyncio.run(main()) == "from A"


def test_a_cancelled_coroutine_does_not_disturb_the_channel(channel):
    async def main():
        task = asyncio.create_task(channel.wait_state_async("A", "A1"))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        channel.set_state("A", "A1", 3)
        return await channel.wait_state_async("A", "A1")

    assert asyncio.run(main()) == 3


def test_closing_wakes_waiters_with_owner_lost(tmp_path, monkeypatch):
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path))
    for transport in ("thread", "process"):
        channel = Channel(transport)
        errors = []

        def wait(channel=channel, errors=errors):
            try:
                channel.wait_state("A", "A1")
            except OwnerLost as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        channel.close()
        thread.join(300)
        assert not thread.is_alive()
        assert len(errors) == 1, transport


def test_only_json_and_bytes_cross_processes(process_channel):
    process_channel.set_state("A", "A1", b"\x00\xff")
    assert process_channel.wait_state("A", "A1") == b"\x00\xff"
    with pytest.raises(TypeError, match="JSON or bytes, not object"):
        process_channel.set_state("A", "A2", object())


def test_a_thread_channel_does_not_travel():
    with Channel("thread") as channel, pytest.raises(TypeError, match="use 'process'"):
        pickle.dumps(channel)


def echo_process(channel):
    value = channel.wait_state("A", "A1", timeout=300)
    channel.set_state("B", "B1", {"got": value})


@pytest.mark.parametrize("context", [SPAWN, FORK], ids=["spawn", "fork"])
def test_processes_use_the_same_calls(process_channel, context):
    process_channel.set_state("parent", "Up")  # an open connection that a fork inherits
    child = context.Process(target=echo_process, args=(process_channel,))
    child.start()
    process_channel.set_state("A", "A1", 42)
    assert process_channel.wait_state("B", "B1", timeout=300) == {"got": 42}
    child.join()
    assert child.exitcode == 0


def die_after_first_state(channel):
    channel.set_state("B", "B1")
    channel.wait_state("never", "Comes")


def test_a_killed_process_fails_who_waits_naming_component_and_state(process_channel):
    child = SPAWN.Process(target=die_after_first_state, args=(process_channel,))
    child.start()
    process_channel.wait_state("B", "B1", timeout=300)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ComponentFailed, match=r"component B failed: .*SIGKILL.* in state B1"):
        process_channel.wait_state("B", "B2", timeout=300)
    child.join()


def finish_cleanly(channel):
    channel.set_state("B", "B1")


def test_a_process_that_ends_cleanly_fails_only_who_waits_for_more(process_channel):
    child = SPAWN.Process(target=finish_cleanly, args=(process_channel,))
    child.start()
    child.join()
    assert process_channel.wait_state("B", "B1", timeout=300) is None
    process_channel.set_state("A", "A1")
    assert process_channel.wait_state("A", "A1", timeout=300) is None
    with pytest.raises(ComponentFailed, match="component B failed"):
        process_channel.wait_state("B", "B2", timeout=300)


def owner_pid(channel):
    folder = channel._backend.run.folder
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if folder.encode() in file.read():
                        return int(entry)
            except OSError:
                continue
    raise AssertionError("the owner was not found")


def test_the_owners_death_makes_waits_raise(process_channel):
    process_channel.set_state("A", "A1")
    process_channel.wait_state("A", "A1")
    owner = owner_pid(process_channel)
    errors = []

    def wait():
        try:
            process_channel.wait_state("A", "A2")
        except OwnerLost as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    os.kill(owner, signal.SIGKILL)
    thread.join(300)
    assert len(errors) == 1
    with pytest.raises(OwnerLost):
        process_channel.wait_state("A", "A1")


def test_a_connection_without_the_runs_token_is_refused(process_channel):
    from cfac.runtime.client import Client

    run = process_channel._backend.run
    stranger = Client(run.socket_path, "0" * 32)
    with pytest.raises(ChannelError):
        stranger.ask({"op": "wait", "who": "stranger", "needs": []}, timeout=5)
    process_channel.set_state("A", "A1", 1)  # everybody else goes on
    assert process_channel.wait_state("A", "A1") == 1
    assert os.stat(run.folder).st_mode & 0o077 == 0
    assert os.stat(run.socket_path).st_mode & 0o077 == 0


def test_nonsense_on_the_socket_hurts_nobody(process_channel):
    import socket

    path = process_channel._backend.run.socket_path
    for garbage in (b"\xff" * 64, b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x04null", b"GET / HTTP"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(path)
            raw.sendall(garbage)
    process_channel.set_state("A", "A1", 1)
    assert process_channel.wait_state("A", "A1") == 1


def test_the_owner_ends_with_the_channel(process_channel):
    owner = owner_pid(process_channel)
    process_channel.close()
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{owner}") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{owner}")
    assert processes_of_run(process_channel._backend.run.id) == []


@pytest.mark.parametrize("transport", ["thread", "process"])
def test_random_graphs_keep_their_order_under_delays(transport, tmp_path, monkeypatch):
    """Many small random graphs, each node in its own thread with an injected delay."""
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path))
    rng = random.Random(20260718)
    for _ in range(15 if transport == "thread" else 5):
        size = rng.randrange(2, 12)
        needs = {
            n: sorted(rng.sample(range(n), rng.randrange(0, min(n, 3) + 1))) for n in range(size)
        }
        delays = {n: rng.random() * 0.01 for n in range(size)}
        ended, begun = {}, {}
        with Channel(transport) as channel:

            def node(n, channel=channel, needs=needs, delays=delays, ended=ended, begun=begun):
                channel.wait_states([(f"c{m}", "Done") for m in needs[n]], timeout=300)
                begun[n] = time.monotonic_ns()
                time.sleep(delays[n])
                ended[n] = time.monotonic_ns()
                channel.set_state(f"c{n}", "Done")

            order = list(range(size))
            rng.shuffle(order)
            threads = [threading.Thread(target=node, args=(n,)) for n in order]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for n, sources in needs.items():
            assert all(ended[m] <= begun[n] for m in sources)
