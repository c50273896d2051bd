"""Trouble that a run and its owner must live through: folders, limits, crowds, stops."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import tiny
from trouble import in_thread, python

from cfac.runtime import client, processes
from cfac.runtime import run as runs_module
from cfac.runtime.channel import Channel
from cfac.runtime.errors import ChannelError, ComponentFailed, WaitTimeout

# -- the folder of runs -------------------------------------------------------------


def test_only_runs_are_ever_removed_from_the_runs_folder(runs, monkeypatch):
    """CFAC_RUNS may be pointed at a folder that holds other things."""
    monkeypatch.setattr(runs_module, "KEPT_RUNS", 2)
    mine = runs / "000-precious"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("years of work")
    for number in range(4):
        run = runs_module.create_run(None, owner=False)
        assert run.id, number
    assert (mine / "thesis.txt").exists()
    assert len(tiny.run_folders(runs)) == 3


def test_a_relative_runs_folder_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFAC_RUNS", "runs")
    with Channel("process") as channel:
        monkeypatch.chdir("/")
        channel.set_state("A", "A1", 1)
        assert channel.wait_state("A", "A1", timeout=tiny.PATIENCE) == 1


def test_the_owner_outlives_its_folder(channel, runs):
    """Temporary folders are cleaned up under a process that lives for days."""
    import shutil

    channel.set_state("A", "A1", 1)
    assert channel.wait_state("A", "A1", timeout=tiny.PATIENCE) == 1
    shutil.rmtree(runs)
    channel.set_state("A", "A1", 2)  # again: the owner notes it down
    channel.fail("A", "no such device")
    with pytest.raises(ComponentFailed, match="no such device"):
        channel.wait_state("A", "A2", timeout=tiny.PATIENCE)


# -- starting the owner -------------------------------------------------------------


START = """
    import os, signal
    from cfac.runtime.channel import Channel
    {before}
    with Channel("process") as channel:
        channel.set_state("A", "A1", 1)
        value = channel.wait_state("A", "A1", timeout=300)
    os.write({out}, str(value).encode())
"""


@pytest.mark.parametrize(
    "before",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "os.close(0)",
        "os.close(0); os.close(2)",
        "del os.pidfd_open; del signal.pidfd_send_signal",
        "os.chdir('/proc/self')",
        "import logging; logging.raiseExceptions = False; os.close(2)",
    ],
)
def test_an_odd_process_can_start_a_run(runs, before):
    result = python(START.format(before=before, out=1))
    assert (result.returncode, result.stdout) == (0, "1"), result.stderr
    assert "Traceback" not in result.stderr
    assert tiny.nothing_left(runs)


def test_the_owner_watches_by_system_call_where_python_cannot(monkeypatch):
    """The Pythons of uv and conda are built against headers that lack pidfd_open."""
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(signal, "pidfd_send_signal")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = processes.open_pidfd(child.pid)
    processes.send_signal(pidfd, signal.SIGKILL)
    assert child.wait(tiny.PATIENCE) == -signal.SIGKILL
    processes.send_signal(pidfd, signal.SIGKILL)  # gone already: nothing happens
    os.close(pidfd)
    assert processes.open_pidfd(child.pid) is None


def test_an_executable_that_never_ends_does_not_hold_up_the_engine(runs, tmp_path, monkeypatch):
    odd = tmp_path / "not-python"
    odd.write_text("#!/bin/sh\nexec sleep 300\n")
    odd.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(odd))
    monkeypatch.setattr(runs_module, "START_TIMEOUT", 0.3)
    with pytest.raises(ChannelError, match="could not be started"):
        Channel("process")
    assert tiny.run_folders(runs) == []


def test_a_frozen_program_is_not_started_as_its_own_owner(runs, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ChannelError, match="frozen"):
        Channel("process")


def test_the_owner_holds_nothing_of_the_engines(runs, tmp_path):
    """Neither its inheritable descriptors (locks, a supervisor's pipe) nor its folder."""
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(lock, True)
    with Channel("process") as channel:
        channel.set_state("A", "A1")
        channel.wait_state("A", "A1", timeout=tiny.PATIENCE)
        owner = tiny.owner_of(runs)
        held = set()
        for entry in os.listdir(f"/proc/{owner}/fd"):
            with contextlib.suppress(OSError):
                held.add(os.readlink(f"/proc/{owner}/fd/{entry}"))
        assert str(tmp_path / "lock") not in held
        assert os.readlink(f"/proc/{owner}/cwd") == "/"
        assert os.getsid(owner) not in (os.getsid(0), 0)
    os.close(lock)


@pytest.mark.parametrize("value", ["soon", "nan", "inf", "1e12", "-1"])
def test_a_nonsensical_stall_time_hurts_nobody(runs, monkeypatch, value):
    monkeypatch.setenv("CFAC_STALL", value)
    for transport in ("thread", "process"):
        with Channel(transport) as channel:
            threading.Timer(0.2, channel.set_state, ("A", "A1", 1)).start()
            assert in_thread(lambda c=channel: c.wait_state("A", "A1")) == 1


# -- values, time limits, many waiters ------------------------------------------------


@pytest.mark.parametrize("size", [1_000_000, 8_000_000])
def test_large_values_cross(channel, size):
    channel.set_state("A", "A1", "x" * size)
    assert channel.wait_state("A", "A1", timeout=tiny.PATIENCE) == "x" * size


def test_values_that_are_too_large_together_fail_only_who_asked_for_them(channel):
    outcome = []
    for name in "AB":
        channel.set_state(name, "Up", "x" * 10_000_000)
    both = threading.Thread(
        target=lambda: outcome.append(
            in_thread(lambda: channel.wait_states([("A", "Up"), ("B", "Up"), ("C", "Up")]))
        )
    )
    both.start()
    time.sleep(0.2)
    other = threading.Thread(target=lambda: outcome.append(channel.wait_state("C", "Up")))
    other.start()
    time.sleep(0.2)
    channel.set_state("C", "Up", 3)
    both.join(tiny.PATIENCE)
    other.join(tiny.PATIENCE)
    assert 3 in outcome
    assert any(isinstance(o, ChannelError) and "over the limit" in str(o) for o in outcome)
    assert channel.wait_state("C", "Up", timeout=tiny.PATIENCE) == 3


def test_a_deeply_nested_value_hurts_nobody(channel):
    value = []
    for _ in range(900):
        value = [value]
    with contextlib.suppress(RecursionError, ChannelError):
        channel.set_state("A", "A1", value)
        in_thread(lambda: channel.wait_state("A", "A1", timeout=tiny.PATIENCE))
    assert tiny.wait_until(lambda: _answers(channel))


def _answers(channel):
    with contextlib.suppress(ChannelError):
        channel.set_state("B", "B1", 1)
        return channel.wait_state("B", "B1", timeout=tiny.PATIENCE) == 1
    return False


@pytest.mark.parametrize("timeout", [1e7, 1e12, float("inf")])
@pytest.mark.parametrize("transport", ["thread", "process"])
def test_a_huge_time_limit_is_none(runs, transport, timeout):
    with Channel(transport) as channel:
        threading.Timer(0.2, channel.set_state, ("A", "A1", 1)).start()
        assert in_thread(lambda: channel.wait_state("A", "A1", timeout=timeout)) == 1

        async def wait():
            return await channel.wait_state_async("A", "A1", timeout=timeout)

        assert in_thread(lambda: asyncio.run(wait())) == 1


@pytest.mark.parametrize("transport", ["thread", "process"])
def test_a_negative_time_limit_is_zero(runs, transport):
    with Channel(transport) as channel:
        for timeout in (-1, -5.5):
            outcome = in_thread(lambda t=timeout: channel.wait_state("A", "A1", timeout=t))
            assert isinstance(outcome, WaitTimeout), outcome


@pytest.mark.parametrize("transport", ["thread", "process"])
def test_a_thousand_waiting_threads(runs, transport):
    with Channel(transport) as channel:
        outcome = []

        def wait():
            try:
                outcome.append(channel.wait_state("A", "A1"))
            except ChannelError as error:
                outcome.append(error)

        threads = [threading.Thread(target=wait) for _ in range(1200)]
        for thread in threads:
            thread.start()
        channel.set_state("A", "A1", 1)
        for thread in threads:
            thread.join(tiny.PATIENCE)
        assert outcome == [1] * 1200


def test_a_thousand_waiting_coroutines(channel):
    async def main():
        tasks = [asyncio.create_task(channel.wait_state_async("A", "A1")) for _ in range(1200)]
        await asyncio.sleep(0.1)
        channel.set_state("A", "A1", 1)
        return await asyncio.gather(*tasks)

    assert in_thread(lambda: asyncio.run(main())) == [1] * 1200


def test_more_waiters_than_the_owner_may_have_descriptors(runs):
    """It neither spins nor loses anybody; some wait until others are answered."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = """
        import resource, threading, time
        from cfac.runtime.channel import Channel
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
        with Channel("process") as channel:
            resource.setrlimit(resource.RLIMIT_NOFILE, ({hard}, {hard}))
            done = []
            threads = [
                threading.Thread(target=lambda: done.append(channel.wait_state("A", "A1")))
                for _ in range(200)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.5)
            channel.set_state("A", "A1", 1)
            for thread in threads:
                thread.join(300)
            print(len(done))
    """
    result = python(code.format(hard=hard))
    assert result.stdout == "200\n", result.stderr[-3000:]


def test_an_owner_without_descriptors_does_not_spin(runs):
    """Even at its hard limit: it accepts again when it can."""
    code = """
        import os, resource, threading, time
        from cfac.runtime.channel import Channel
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        channel = Channel("process")
        channel.set_state("A", "A1")
        channel.wait_state("A", "A1")
        import tiny
        owner = tiny.owner_of(tiny.Path(os.environ["CFAC_RUNS"]))
        resource.prlimit(owner, resource.RLIMIT_NOFILE, (12, 12))
        done = []
        def wait():
            done.append(channel.wait_state("B", "B1"))
        threads = [threading.Thread(target=wait, daemon=True) for _ in range(20)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        ticks = lambda: sum(map(int, open(f"/proc/{owner}/stat").read().split()[13:15]))
        before = ticks()
        time.sleep(1)
        assert ticks() - before < 20, ticks() - before
        channel.set_state("B", "B1", 1)
        for thread in threads:
            thread.join(tiny.PATIENCE)
        print(len(done))
        channel.close()
    """
    environment = os.environ | {"PYTHONPATH": f"{tiny.ROOT}:{tiny.ROOT / 'tests' / 'runtime'}"}
    result = python(code, env=environment)
    assert result.stdout == "20\n", result.stderr[-3000:]


# -- a slow or stopped owner -----------------------------------------------------------


def test_publishing_to_a_stopped_owner_costs_little_and_once(channel, runs):
    from cfac.runtime.run import Run
    from cfac.runtime.session import Session

    channel.set_state("A", "A1")
    channel.wait_state("A", "A1", timeout=tiny.PATIENCE)
    owner = tiny.owner_of(runs)
    os.kill(owner, signal.SIGSTOP)
    try:
        run = channel._backend.run
        session = Session(Run(run.id, run.token, run.folder))
        began = time.monotonic()
        for number in range(2000):
            session.post({"op": "set", "c": "B", "s": f"B{number}", "v": "x" * 500})
        # not once for each: that would be a quarter of an hour
        assert time.monotonic() - began < 20 * client.SEND_TIMEOUT
        assert session.lost is not None
    finally:
        os.kill(owner, signal.SIGCONT)


def test_a_timed_coroutine_does_not_depend_on_the_owner_to_end(channel, runs, monkeypatch):
    monkeypatch.setattr("cfac.runtime.client.SEND_TIMEOUT", 0.3)
    channel.set_state("A", "A1")
    channel.wait_state("A", "A1", timeout=tiny.PATIENCE)
    owner = tiny.owner_of(runs)
    os.kill(owner, signal.SIGSTOP)
    try:
        outcome = in_thread(lambda: asyncio.run(channel.wait_state_async("A", "A2", timeout=0.2)))
        assert isinstance(outcome, WaitTimeout)
    finally:
        os.kill(owner, signal.SIGCONT)


def test_an_idle_owner_costs_nothing(channel, runs):
    channel.set_state("A", "A1")
    channel.wait_state("A", "A1", timeout=tiny.PATIENCE)
    owner = tiny.owner_of(runs)

    def switches():
        lines = (tiny.Path("/proc") / str(owner) / "status").read_text().splitlines()
        return [line for line in lines if "ctxt_switches" in line]

    def idle():
        before = switches()
        time.sleep(1)
        return switches() == before

    assert tiny.wait_until(idle)  # it may have had no CPU yet for the answer's rest


def test_a_full_standard_error_does_not_stop_the_owner(runs):
    """Nobody reads the engine's messages: the owner drops its own and goes on."""
    code = """
        import os
        from cfac.runtime.channel import Channel
        from cfac.runtime.errors import ComponentFailed
        with Channel("process") as channel:
            channel.set_state("A", "A1")
            os.set_blocking(2, False)
            try:
                while True:
                    os.write(2, b"x" * 1000)
            except BlockingIOError:
                os.set_blocking(2, True)
            channel.fail("A", "no such device")
            try:
                channel.wait_state("A", "A2", timeout=300)
            except ComponentFailed as error:
                print(error)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tiny.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "no such device" in process.stdout.readline()
    process.kill()
    process.communicate(timeout=tiny.PATIENCE)
