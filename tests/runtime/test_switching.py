"""`cfac gateway` and `cfac switch` before small HTTP servers in processes of their own.

The servers stand in for engines (small_server.py); processes, run, waits and requests are
real.  Two vLLM servers are switched in tests/engine.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gateway_house import House, events, slow_start, until

from cfac.runtime.errors import ChannelError
from cfac.runtime.history import find_run, read_run
from cfac.runtime.switching.engines import Server


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.end()


def test_small_servers_nothing_is_lost_and_memory_is_never_taken_twice(house: House) -> None:
    house.open(house.command("a"))
    slow_start(house, 0.3)
    assert house.ask("a") == (200, '{"model": "a", "got": "a"}')
    assert house.ask("c")[0] == 404
    with ThreadPoolExecutor(8) as pool:
        long = pool.submit(house.ask, "a", tokens=20, pause=0.1)
        until(lambda: (house.status() or {})["in_flight"] == 1)
        switching = pool.submit(house.switch, house.command("b", "--environment", "0.5"))
        until(lambda: (house.status() or {})["coming"] == "b")
        waiting = [pool.submit(house.ask, "b") for _ in range(3)]
        assert long.result() == (200, "".join(f"a {n}\n" for n in range(20)))
        assert [one.result() for one in waiting] == [(200, '{"model": "b", "got": "b"}')] * 3
        said = switching.result()
    assert said.returncode == 0, said.stderr
    assert events(said) == ["begin", "started", "predicted", *events(said)[3:]]
    order = [e for e in events(said) if e in ("started", "drained", "told", "freed", "active")]
    assert order == ["started", "drained", "told", "freed", "active"]
    assert house.served() == "b" and house.servers() == ["b"]
    recorded = house.history.read()[-1]
    assert (recorded.old, recorded.new) == ("a", "b")
    assert recorded.predicted_t1 == 0.3 and recorded.t1 >= 0.5 and recorded.t2 > 0
    os.environ["CFAC_RUNS"] = house.environment["CFAC_RUNS"]
    try:
        run = read_run(find_run(None))
    finally:
        del os.environ["CFAC_RUNS"]
    freed, active = run.end("old[0]", "GMemFreed"), run.end("new[0]", "Active")
    ready = run.end("new[0]", "EnvReady")
    assert freed is not None and active is not None and ready is not None
    assert freed < active and ready < active


def test_small_servers_that_are_not_patched_go_one_after_the_other(house: House) -> None:
    house.open(house.command("a"), overlap=False)
    said = house.switch(house.command("b", "--unpatched"))
    assert said.returncode == 0, said.stderr
    assert events(said) == ["begin", "closed", "drained", "told", "freed", "started", "active"]
    assert house.ask("b")[0] == 200 and house.servers() == ["b"]


def test_a_small_server_that_never_waited_is_refused_and_ended(house: House) -> None:
    house.open(house.command("a"))
    slow_start(house, 100)
    other = f"{house.command('b', '--unpatched')} --memory {house.folder}/other"
    said = house.switch(other)
    assert said.returncode == 1
    assert "b serves, and never waited for memory" in said.stderr
    assert "a goes on serving" in said.stderr
    assert house.ask("a")[0] == 200 and house.servers() == ["a"]


def test_a_small_server_that_fails_early_costs_nothing(house: House) -> None:
    house.open(house.command("a"))
    slow_start(house, 100)
    said = house.switch(house.command("b", "--die", "before"))
    assert said.returncode == 1
    assert "ended with exit code 1" in said.stderr and "a goes on serving" in said.stderr
    assert "told" not in events(said) and events(said)[-1] == "kept"
    assert house.ask("a")[0] == 200 and house.servers() == ["a"]
    assert house.ask("b")[0] == 404


@pytest.mark.parametrize("restart", [True, False])
def test_a_small_server_that_fails_late_brings_the_old_one_back(
    house: House, restart: bool
) -> None:
    house.open(house.command("a"))
    options = [] if restart else ["--no-restart"]
    said = house.switch(house.command("b", "--die", "after"), *options)
    assert said.returncode == 1 and "b ended with exit code 1" in said.stderr
    assert "told" in events(said)
    if restart:
        assert "a was started again" in said.stderr and "restarted" in events(said)
        assert house.ask("a")[0] == 200 and house.servers() == ["a"]
    else:
        assert "a is stopped and not started again (asked not to)" in said.stderr
        status, text = house.ask("a")
        assert status == 503 and "b ended with exit code 1" in text and house.servers() == []


def test_a_second_switch_between_small_servers_is_refused_or_queued(house: House) -> None:
    house.open(house.command("a"))
    slow_start(house, 0.5)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(house.switch, house.command("b", "--environment", "1.5"))
        until(lambda: (house.status() or {})["coming"] == "b")
        refused = house.switch(house.command("c"))
        queued = pool.submit(house.switch, house.command("c"), "--queue")
        assert refused.returncode == 1 and "a switch to b is under way" in refused.stderr
        assert first.result().returncode == 0
        assert queued.result().returncode == 0, queued.result().stderr
    assert house.served() == "c" and house.servers() == ["c"]


def test_a_small_server_that_hangs_is_killed_at_its_deadline(house: House) -> None:
    house.open(house.command("a", "--hang"))
    said = house.switch(house.command("b"), "--stop", "0.5")
    assert said.returncode == 0, said.stderr
    assert "killed=True" in said.stdout
    assert house.ask("b")[0] == 200 and house.servers() == ["b"]


def test_a_killed_gateway_finds_its_small_server_again(house: House) -> None:
    house.open(house.command("a"))
    assert house.gateway is not None
    house.gateway.kill()
    house.gateway.wait()
    assert house.servers() == ["a"]
    house.open()
    assert house.ask("a")[0] == 200
    said = house.switch(house.command("b"))
    assert said.returncode == 0, said.stderr
    assert house.servers() == ["b"]


@pytest.mark.parametrize("told", [False, True])
def test_a_gateway_that_is_stopped_leaves_one_small_server(house: House, told: bool) -> None:
    house.open(house.command("a"))
    slow_start(house, 0 if told else 100)
    assert house.gateway is not None
    with ThreadPoolExecutor(1) as pool:
        switching = pool.submit(house.switch, house.command("b", "--environment", "2"))
        if told:
            until(lambda: house.servers() == ["b"])
        else:
            until(lambda: house.servers() == ["a", "b"])
        house.gateway.terminate()
        assert house.gateway.wait(300) == 0
        switching.result()
    house.gateway = None
    assert house.servers() == (["b"] if told else ["a"])
    house.open()
    assert house.ask("b" if told else "a")[0] == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not a switch"), (b"[]", "not a switch"), (b'{"to": ""}', "is empty"),
        (b'{"to": "x --port 1", "drian": 1}', "unknown: drian"),
        (b'{"to": "vllm serve m", "drain": "x"}', "drain is a float"),
        (b'{"to": "vllm serve m", "old_ranks": 0}', "too small"),
        (b'{"to": "vllm --port 1"}', "which model"), (b'{"to": "serve \'x"}', "not a command"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_an_error_and_changes_nothing(
    shared: House, body: bytes, said: str
) -> None:
    request = urllib.request.Request(f"{shared.url}/cfac/switch", data=body)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request)
    assert raised.value.code == 400
    assert said in json.loads(raised.value.read())["error"]["message"]
    assert shared.ask("a")[0] == 503


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("shared"))
    house.open()
    yield house
    house.end()


def test_a_command_line_says_what_is_served_and_where() -> None:
    found = Server.of("vllm serve org/m --port=81 --host 0.0.0.0")
    assert (found.model, found.url) == ("org/m", "http://127.0.0.1:81")
    assert Server.of("vllm serve org/m --served-model-name s --port 5").model == "s"
    assert Server.of("x", "m", "http://h:1/").url == "http://h:1"
    with pytest.raises(ChannelError, match="not an http"):
        Server.of("x", "m", "ftp://h")
