"""One switch between two real servers behind `cfac gateway`, and what its clients saw of it.

A chain of switches: the engine that serves at the end of one is the old one of the next,
whichever way that goes.  Each way has a gateway of its own, with a folder and so a history of
its own; it takes the running engine up, switches, and goes (the engine outlives it).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sides import END_SECONDS, ENVIRONMENT, ROOT, SETTINGS, BenchFailed, WrongAnswer, free_port
from tree import cpu_seconds, end_descendants, machine_seconds

TOKENS = 8
#: Between two requests of the client of the old model, seconds.
PAUSE = 0.25
#: How long a gateway may take to come up, seconds; Python's imports on a busy machine.
UP_SECONDS = 120.0


@dataclass(frozen=True)
class Way:
    """One way to switch: the spec (None: stop, then start), and what its engines are given."""

    label: str
    spec: Path | None
    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)


@dataclass
class Switched:
    """One switch: its figures, its events by name, and the first answer of the new model."""

    sample: dict[str, float]
    events: dict[str, dict[str, Any]]
    text: str
    new: str


#: The command that serves a model in a way, on a port.
Command = Callable[[Way, str, int], str]


def engine_command(engine: Path, models: dict[str, Path]) -> Command:
    """``env … vllm serve MODEL``: eager, on the CPU, in the setting of all benchmarks."""

    def command(way: Way, model: str, port: int) -> str:
        words = ["env", *(f"{key}={value}" for key, value in way.environment.items())]
        words += [f"{engine}/bin/vllm", "serve", str(models[model]), "--host", "127.0.0.1"]
        words += ["--port", str(port), "--served-model-name", model, "--enforce-eager"]
        words += [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
        return shlex.join([*words, *way.arguments])

    return command


def ask(url: str, model: str) -> tuple[int, dict[str, Any]]:
    """A greedy completion: the status and the answer, or the error."""
    body = {"model": model, "prompt": "The engine starts", "max_tokens": TOKENS}
    body |= {"temperature": 0, "seed": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Chain:
    """The engine that serves now, and switches from it in any way."""

    def __init__(self, folder: Path, command: Command, models: list[str]) -> None:
        self.folder, self.command, self.models = folder, command, models
        self.pid: int | None = None
        self.serve = ""
        self.model = models[0]
        self.texts: dict[str, str] = {}

    @contextlib.contextmanager
    def gateway(self, way: Way, *options: str) -> Iterator[str]:
        """A gateway of a way; its address.  It is ended after, and not what it serves."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        words = [sys.executable, "-m", "cfac.compiler.cli", "gateway", "--port", str(port)]
        words += ["--folder", str(self.folder / way.label), *options]
        words += ["--spec", str(way.spec)] if way.spec else []
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CFAC_", "VLLM_"))}
        environment |= ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
        environment |= {"CFAC_RUNS": str(self.folder / "runs")}
        environment |= {"VLLM_CACHE_ROOT": str(self.folder / "cache")}
        process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
        try:
            wait_for(lambda: status(url) is not None, UP_SECONDS, "the gateway")
            yield url
        finally:
            process.terminate()
            process.wait()

    def begin(self, way: Way) -> None:
        """Start the first engine."""
        self.serve = self.command(way, self.model, free_port())
        with self.gateway(way, "--serve", self.serve) as url:
            wait_for(lambda: (status(url) or {}).get("served"), 600, f"{self.model}'s server")
            self.pid = (status(url) or {})["served"]["pid"]
            self._check(self.model, ask(url, self.model))

    def end(self) -> None:
        """End what serves, and whatever is left."""
        end_descendants(0.0 if self.pid is None else self._signal(self.pid))

    def _signal(self, pid: int) -> float:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        return END_SECONDS

    def switch(self, way: Way) -> Switched:
        """Switch to the other model.  BenchFailed if anything is lost or wrong."""
        new = self.models[1 - self.models.index(self.model)]
        serve = self.command(way, new, free_port())
        with self.gateway(way, "--serve", self.serve, "--pid", str(self.pid)) as url:
            cpu, machine = cpu_seconds(), machine_seconds()
            begun = time.monotonic()
            found = _Clients(url, self.model, new).during(serve)
            seconds = time.monotonic() - begun
            others = machine_seconds() - machine - (cpu_seconds() - cpu)
            self.pid = (status(url) or {})["served"]["pid"]
        self._check(new, found.first)
        self.serve, self.model = serve, new
        sample = found.sample() | {"others": max(0.0, others) / seconds}
        return Switched(sample, found.events, self.texts[new], new)

    def _check(self, model: str, answer: tuple[int, dict[str, Any]]) -> None:
        """That a model answered, by its name, and what it always does."""
        code, found = answer
        if code != 200 or found["model"] != model:
            raise BenchFailed(f"{model} was asked, and the answer is {code}: {found}")
        text = found["choices"][0]["text"]
        if self.texts.setdefault(model, text) != text:
            raise WrongAnswer(f"{model}: {text!r} instead of {self.texts[model]!r}")


class _Clients:
    """A client that goes on asking the old model, and one that asks the new one early."""

    def __init__(self, url: str, old: str, new: str) -> None:
        self.url, self.old, self.new = url, old, new
        self.events: dict[str, dict[str, Any]] = {}
        self.served = 0
        self.wrong: list[Any] = []
        self.first: tuple[int, dict[str, Any]] = (0, {})
        self.answered = 0.0
        self._over = threading.Event()

    def during(self, command: str) -> _Clients:
        """Switch, with both clients at work."""
        threads = [threading.Thread(target=work) for work in (self._ask_old, self._ask_new)]
        body = json.dumps({"to": command}).encode()
        request = urllib.request.Request(f"{self.url}/cfac/switch", body)
        try:
            with urllib.request.urlopen(request) as lines:
                for line in lines:
                    event = json.loads(line)
                    self.events[event["event"]] = event
                    if event["event"] == "begin":
                        for thread in threads:
                            thread.start()
        finally:
            self._over.set()
        for thread in threads:
            thread.join()
        if not self.events["done"]["ok"]:
            raise BenchFailed(f"the switch to {self.new} failed: {self.events['done']['reason']}")
        if self.wrong:
            raise BenchFailed(f"requests for {self.old} got {self.wrong}")
        return self

    def _ask_old(self) -> None:
        """Until it is refused, as a model that leaves."""
        while not self._over.wait(PAUSE):
            code, answer = ask(self.url, self.old)
            if code == 503 and answer["error"]["type"] == "model_leaving":
                return
            if code == 200 and answer["model"] == self.old:
                self.served += 1
            elif not self._over.is_set():
                self.wrong.append((code, answer))

    def _ask_new(self) -> None:
        self.first = ask(self.url, self.new)
        self.answered = time.monotonic()

    def sample(self) -> dict[str, float]:
        """Seconds; see switching.FIGURES."""
        at = {name: event.get("at", 0.0) for name, event in self.events.items()}
        zero = self.events["begin"]["clock"]
        prediction = self.events.get("prediction", {})
        return {
            "stall": self.answered - zero - at["closed"],
            "total": self.answered - zero,
            "served": at["closed"],
            "freed": at["freed"] - at["closed"],
            "waited": prediction.get("waited", 0.0),
            "early": prediction.get("early", 0.0),
            "requests": float(self.served),
        }


def status(url: str) -> dict[str, Any] | None:
    """What a gateway says of itself; None while it is not up."""
    try:
        with urllib.request.urlopen(f"{url}/cfac/status") as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return None


def wait_for(holds: Callable[[], Any], seconds: float, what: str) -> None:
    """BenchFailed if something does not come in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise BenchFailed(f"{what} did not come up within {seconds:.0f} s")
        time.sleep(0.1)
