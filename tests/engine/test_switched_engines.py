"""Two real vLLM servers behind `cfac gateway`, switched to and fro; `soak` tests.

The engines are patched with the fast start and the switching spec together, and load in
chunks: each is in its own run and, while it is the new one, in the switch's.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from load_format import plugin_environment
from real_engine import ROOT, vllm_server
from test_engine_in_two_runs import TOGETHER

# tests/runtime, which real_engine puts on sys.path
from gateway_house import House, events, slow_start, until  # isort: skip
from switching_stream import Stream, Switched, problems, report  # isort: skip

from cfac.runtime.history import read_run

#: Two more than issue 5 asks for: then the last two have a history of ten.
SWITCHES = 22


class Engines(House):
    """A gateway before real engines: models ``tiny`` and ``large`` (1.8 GB)."""

    limit = 600.0
    naming = "--served-model-name"

    def __init__(self, folder: Path, engine: Path, package: Path, models: dict[str, Path]) -> None:
        super().__init__(folder)
        self.engine, self.models = engine, models
        plugin = plugin_environment(folder)
        hidden = ("CFAC_", "VLLM_", "PYTHONPATH")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self.environment |= vllm_server.ENVIRONMENT | plugin
        self.environment |= {"CFAC_RUNS": f"{folder}/runs", "VLLM_CACHE_ROOT": f"{folder}/cache"}
        paths = [str(package), plugin["PYTHONPATH"]]
        self.environment["PYTHONPATH"] = os.pathsep.join(paths)
        self.marks = {f"{engine}/bin/vllm", "serve"}

    def command(self, model: str, *options: str) -> str:
        words = [f"{self.engine}/bin/vllm", "serve", str(self.models[model]), *options]
        words += ["--host", "127.0.0.1", "--port", str(vllm_server.free_port())]
        words += ["--served-model-name", model, "--enforce-eager", "--load-format", "cfac"]
        words += [f"--{k.replace('_', '-')}={v}" for k, v in vllm_server.SETTINGS.items()]
        return shlex.join(words)

    def servers(self) -> list[str]:
        """Each model once: a core that was just forked still has its parent's command line."""
        return sorted(set(super().servers()))

    def processes(self, model: str) -> list[int]:
        """All processes of the served model's engine."""
        leader = (self.status() or {})["served"]["pid"]
        assert self.served() == model
        return session_of(leader)


def session_of(leader: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.getsid(int(entry)) == leader:
                    found.append(int(entry))
            except ProcessLookupError:
                continue
    return found


@pytest.fixture
def house(engine, model, patched, tmp_path):
    other = model.parent / "large"
    script = ROOT / "examples" / "vllm" / "make_model.py"
    subprocess.run(
        [engine / "bin" / "python", script, other, "--kind", "large"],
        check=True, env=os.environ | vllm_server.ENVIRONMENT,
    )  # fmt: skip
    package = patched(*TOGETHER).package
    house = Engines(tmp_path, engine, package, {"tiny": model, "large": other})
    yield house
    house.end()


def asked(house: House, model: str, **more) -> tuple[int, str]:
    body = {"prompt": "The engine starts", "max_tokens": 4, "temperature": 0, "seed": 0} | more
    return house.ask(model, **body)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_engines_are_switched_under_a_steady_stream_and_no_request_is_lost(house, record_property):
    house.open(house.command("tiny"))
    first = asked(house, "tiny")
    stream = Stream(house.url, ["tiny", "large"], pause=0.25)
    switches = []
    try:
        for number in range(SWITCHES):
            new = ("large", "tiny")[number % 2]
            switches.append(Switched.perform(house.url, house.command(new)))
            assert switches[-1].ok, switches[-1].events
    finally:
        seen = stream.end()
    codes = Counter(str(one.code) for one in seen)
    record_property("requests", {"asked": len(seen), "by_code": dict(codes)})
    record_property("switches", report(seen, switches).splitlines())
    assert problems(seen, switches) == []
    assert asked(house, "tiny")[0] == first[0] == 200
    assert house.servers() == ["tiny"]
    for switch in switches:
        history = read_run(house.folder / "runs" / switch.events["begin"]["run"])
        ready, freed = history.end("new[0]", "EnvReady"), history.end("old[0]", "GMemFreed")
        begun, active = history.begins["new[0]", "Active"][0], history.end("new[0]", "Active")
        assert ready < begun and freed < begun < active
        assert "frontend" not in {event["c"] for event in history.of("publish")}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_new_engines_that_cannot_be_leave_the_old_one_or_bring_it_back(house):
    house.open(house.command("tiny"))
    slow_start(house, 600)  # nothing is stopped before the new one needs memory
    house.models["nowhere"] = house.folder / "nowhere"
    said = house.switch(house.command("nowhere"))
    assert said.returncode == 1 and "tiny goes on serving" in said.stderr
    assert "told" not in events(said)
    assert house.servers() == ["tiny"] and asked(house, "tiny")[0] == 200

    # as the OOM killer does: a process of the new engine, while it loads
    slow_start(house, 0)
    switching = house.begin_switch(house.command("large"))
    switching.until("freed")
    begin = next(line for line in switching.lines if "  begin" in line)
    history = read_run(house.folder / "runs" / begin.partition("run=")[2].split()[0])
    victim = next(e["pid"] for e in history.of("publish") if (e["c"], e["s"]) == ("new", "Start"))
    os.kill(victim, signal.SIGKILL)
    code, err = switching.end()
    assert code == 1 and "tiny was started again" in err
    assert house.servers() == ["tiny"] and asked(house, "tiny")[0] == 200

    # a limit on its memory: the KV cache does not fit
    words = ["env", "VLLM_CPU_KVCACHE_SPACE=16", "prlimit", f"--data={8 << 30}"]
    said = house.switch(shlex.join([*words, *shlex.split(house.command("large"))]))
    assert said.returncode == 1 and "tiny was started again" in said.stderr, said.stdout
    assert house.servers() == ["tiny"] and asked(house, "tiny")[0] == 200


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("event", "lives"), [("predicted", "tiny"), ("told", "large")])
@pytest.mark.parametrize("kill", [False, True])
def test_a_gateway_that_ends_amidst_a_switch_of_engines(house, event, lives, kill):
    house.open(house.command("tiny"))
    slow_start(house, 600 if event == "predicted" else 0)
    house.begin_switch(house.command("large")).until(event)
    if kill:
        house.kill()
    else:
        house.gateway.terminate()
        assert house.gateway.wait(600) == 0
    house.open()
    until(lambda: house.served() == lives, 600)
    until(lambda: house.servers() == [lives], 120)
    assert asked(house, lives)[0] == 200


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_an_engine_that_hangs_when_it_is_stopped_is_killed_and_the_switch_goes_on(house):
    house.open(house.command("tiny"))
    for pid in house.processes("tiny"):
        os.kill(pid, signal.SIGSTOP)
    said = house.switch(house.command("large"), "--drain", "1", "--stop", "2")
    assert said.returncode == 0, said.stderr
    assert "killed=True" in said.stdout
    assert house.servers() == ["large"] and asked(house, "large")[0] == 200
