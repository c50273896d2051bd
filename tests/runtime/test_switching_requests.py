"""Until when the old model is served, and which server a switch leaves (small servers)."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_house import House, events, free_port, slow_start, until
from switching_stream import ROUNDED, Stream, Switched, problems, report

from cfac.runtime.errors import ChannelError
from cfac.runtime.switching.found import find


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.end()


class Steady:
    """A client of one model, request after request: (sent, status, body, headers) of each."""

    def __init__(self, house: House, model: str) -> None:
        self.house, self.model = house, model
        self.seen: list[tuple[float, int, str, dict[str, str]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._over.wait(0.02):
            sent = time.monotonic()
            code, body, headers = self.house.answer(self.model)
            self.seen.append((sent, code, body, dict(headers.items())))

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def test_a_small_server_is_served_until_its_drain_begins_and_refused_with_a_time(
    house: House,
) -> None:
    house.open(house.command("a"))
    slow_start(house, 1.0)
    client = Steady(house, "a")
    try:
        said = house.switch(house.command("b", "--environment", "1.5"))
    finally:
        client.end()
    assert said.returncode == 0, said.stderr
    told = dict(zip(events(said), said.stdout.splitlines(), strict=False))
    begun = float(told["begin"].rpartition("clock=")[2])
    closed = begun + float(told["closed"].split()[0])
    predicted = float(told["predicted"].rpartition("delay=")[2])
    assert predicted == 1.0 and closed >= begun + predicted
    served = [one for one in client.seen if one[1] == 200]
    refused = [one for one in client.seen if one[1] == 503]
    gone = [one for one in client.seen if one[1] == 404]
    assert len(served) + len(refused) + len(gone) == len(client.seen)
    assert [one[1] for one in client.seen] == [200] * len(served) + [503] * len(refused) + [
        404
    ] * len(gone)
    assert served and refused
    assert refused[-1][0] > closed  # and nobody is refused before
    assert all(sent < closed + ROUNDED for sent, *_ in served)
    for _, _, body, headers in refused:
        error = json.loads(body)["error"]
        assert (error["type"], error["code"]) == ("model_leaving", 503)
        assert "a is being replaced by b" in error["message"]
        assert int(headers["Retry-After"]) >= 1


def test_a_switch_from_the_served_small_server_by_pid_or_address(house: House) -> None:
    house.open(house.command("a"))
    served = (house.status() or {})["served"]
    assert house.switch(house.command("b"), "--from", str(served["pid"])).returncode == 0
    served = (house.status() or {})["served"]
    assert house.switch(house.command("c"), "--from", served["url"]).returncode == 0
    assert house.served() == "c" and house.servers() == ["c"]


def test_a_switch_from_another_small_server_than_the_served_one_is_refused(house: House) -> None:
    house.open(house.command("a"))
    said = house.switch(house.command("b"), "--from", str(os.getpid()))
    assert said.returncode == 1 and said.stdout == ""
    assert "which model does it serve" in said.stderr or "a is served" in said.stderr
    said = house.switch(house.command("b"), "--from", f"http://127.0.0.1:{free_port()}")
    assert said.returncode == 1 and "nobody listens on port" in said.stderr
    assert house.servers() == ["a"] and house.ask("a")[0] == 200


@pytest.mark.parametrize("by", ["pid", "url"])
def test_a_running_small_server_is_taken_up_and_left(house: House, by: str) -> None:
    command = house.command("a")
    server = subprocess.Popen(shlex.split(command), start_new_session=True)
    port = command.split("--port ")[1].split()[0]
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: house.ask_at(url))
        house.open()
        assert house.ask("a")[0] == 503
        leaving = str(server.pid) if by == "pid" else url
        said = house.switch(house.command("b", "--die", "after"), "--from", leaving)
        assert said.returncode == 1 and "a was started again" in said.stderr
        server.wait(300)
        assert house.ask("a")[0] == 200 and house.servers() == ["a"]
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4194304", "is gone"), ("x", "neither a process id nor an http"),
        ("https://h", "neither"), (f"http://127.0.0.1:{free_port()}", "nobody listens"),
        (str(os.getpid()), "which model does it serve"),
    ],
)  # fmt: skip
def test_what_is_no_server_is_said(text: str, said: str) -> None:
    with pytest.raises(ChannelError, match=said):
        find(text)


def test_a_steady_stream_over_six_switches_of_small_servers(house: House) -> None:
    house.open(house.command("a", "--openai"))
    stream = Stream(house.url, ["a", "b"], pause=0.03)
    switches = []
    try:
        for number in range(6):
            options = ["--openai", "--environment", "0.6", "--load", "0.3"]
            command = house.command("ba"[number % 2], *options)
            switches.append(Switched.perform(house.url, command))
    finally:
        asked = stream.end()
    assert all(one.ok for one in switches)
    assert problems(asked, switches) == []
    # a model is away for moments only, between two switches
    assert {200, 503} <= {one.code for one in asked} <= {200, 404, 503}
    assert house.servers() == ["a"]
    text = report(asked, switches)
    assert all(f"history of {size}: n=2" in text for size in (0, 1, 2)), text
    for one in switches:
        early = one.events["begin"]["clock"] + one.events["predicted"]["delay"]
        assert one.at("closed") >= min(early, one.at("env_ready")) - ROUNDED
