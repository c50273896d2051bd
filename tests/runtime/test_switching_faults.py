"""Gateways that end in the midst of a switch, and new models that cannot be (small servers)."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gateway_house import House, events, slow_start, until


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.end()


#: The event after which a gateway is ended -> whose server lives then.
STATES = {
    "started": "a", "predicted": "a", "closed": "a", "told": "b", "freed": "b", "env_ready": "b",
}  # fmt: skip


def begin(house: House, event: str, pool: ThreadPoolExecutor) -> None:
    """A switch from a to b that has come to the event, and stays there for a while."""
    slow_start(house, 100 if event in ("started", "predicted") else 0)
    if event == "closed":  # a request in flight keeps the drain
        pool.submit(house.ask, "a", tokens=30, pause=0.1)
        until(lambda: (house.status() or {})["in_flight"] == 1)
    seconds = {"env_ready": "0.1", "freed": "0.1", "told": "1.5"}.get(event, "5")
    new = house.command("b", "--environment", seconds, "--load", "1.5")
    house.begin_switch(new).until(event)


@pytest.mark.parametrize(("event", "lives"), STATES.items())
def test_a_gateway_that_is_terminated_leaves_one_small_server(
    house: House, event: str, lives: str
) -> None:
    house.open(house.command("a"))
    assert house.gateway is not None
    with ThreadPoolExecutor(1) as pool:
        begin(house, event, pool)
        house.gateway.terminate()
        assert house.gateway.wait(300) == 0
    house.gateway = None
    assert house.servers() == [lives]
    house.open()
    assert house.ask(lives)[0] == 200 and house.servers() == [lives]


@pytest.mark.parametrize(
    ("event", "lives", "overlap"),
    [
        ("predicted", "a", True), ("closed", "a", True), ("told", "b", True),
        ("env_ready", "b", True), ("closed", "a", False), ("started", "b", False),
    ],
)  # fmt: skip
def test_a_gateway_that_is_killed_goes_on_as_the_next_one(
    house: House, event: str, lives: str, overlap: bool
) -> None:
    house.open(house.command("a"), overlap=overlap)
    with ThreadPoolExecutor(1) as pool:
        begin(house, event, pool)
        house.kill()
    house.open(overlap=overlap)
    until(lambda: house.served() == lives)
    until(lambda: house.servers() == [lives])
    assert house.ask(lives)[0] == 200
    said = house.switch(house.command("c"))  # and all goes on
    assert said.returncode == 0, said.stderr
    assert house.servers() == ["c"]


def test_a_first_start_that_its_gateway_did_not_live_to_see_is_gone_on_with(house: House) -> None:
    house.open()
    house.begin_switch(house.command("a", "--load", "2")).until("env_ready")
    house.kill()
    house.open()
    until(lambda: house.served() == "a")
    assert house.servers() == ["a"] and house.ask("a")[0] == 200


def test_a_small_server_with_a_bad_path_costs_nothing(house: House) -> None:
    house.open(house.command("a"))
    said = house.switch("/nowhere/vllm serve b --port 1")
    assert said.returncode == 1
    assert "b cannot be started" in said.stderr and "a goes on serving" in said.stderr
    assert "closed" not in events(said)
    assert house.ask("a")[0] == 200 and house.servers() == ["a"]


def test_a_small_server_without_memory_to_load_brings_the_old_one_back(house: House) -> None:
    house.open(house.command("a"))
    limited = house.command("b", "--bytes", str(1 << 30))
    said = house.switch(shlex.join(["prlimit", f"--as={1 << 29}", *shlex.split(limited)]))
    assert said.returncode == 1 and "told" in events(said)
    assert "b ended with exit code 1" in said.stderr and "a was started again" in said.stderr
    assert "MemoryError" in (house.folder / "gateway" / "b.log").read_text()
    assert house.ask("a")[0] == 200 and house.servers() == ["a"]


def test_a_small_server_that_is_killed_while_it_loads_brings_the_old_one_back(
    house: House,
) -> None:
    house.open(house.command("a"))
    switching = house.begin_switch(house.command("b", "--load", "30"))
    switching.until("env_ready")
    until(lambda: house.servers() == ["b"])
    os.kill(house.process_of("b"), signal.SIGKILL)
    code, err = switching.end()
    assert code == 1 and "exit code -9" in err and "a was started again" in err
    assert house.ask("a")[0] == 200 and house.servers() == ["a"]
