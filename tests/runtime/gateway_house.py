"""A gateway before small servers that share one memory: what the tests of switching share.

The servers stand in for engines (small_server.py); processes, run, waits and requests are
real.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any

from cfac.runtime.switching.predict import Record, SwitchHistory

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "vllm"))

from server import free_port  # noqa: E402

__all__ = [
    "CLI",
    "SERVER",
    "SPEC",
    "House",
    "Switching",
    "events",
    "free_port",
    "slow_start",
    "until",
]
SERVER = Path(__file__).with_name("small_server.py")
SPEC = ROOT / "specs" / "vllm" / "model-switching.yaml"
CLI = [sys.executable, "-m", "cfac.compiler.cli"]


class Switching:
    """A `cfac switch` that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, event: str) -> None:
        """Read on until an event is told."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if " s  " in line and line.split()[2] == event:
                return
        raise AssertionError(f"no {event} in {self.lines} {self.end()[1]}")

    def end(self) -> tuple[int, str]:
        """Exit code and standard error."""
        out, err = self.process.communicate(timeout=300)
        self.lines += out.splitlines()
        return self.process.returncode, err


class House:
    """A gateway, and the commands of servers that share one memory.

    ``limit``: how long a server may take to serve, seconds; ``marks``: what the command lines
    of its servers have in common, and ``naming`` the option before the model's name.
    """

    limit = 60.0
    naming = "--model"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.gateway: subprocess.Popen[str] | None = None
        self.environment = {**os.environ, "CFAC_RUNS": str(folder / "runs")}
        self.history = SwitchHistory(str(folder / "gateway" / "switches.jsonl"))
        self.marks = {str(SERVER), f"{folder}/memory"}

    def command(self, model: str, *options: str) -> str:
        words = [sys.executable, str(SERVER), "--model", model, "--port", str(free_port())]
        return shlex.join([*words, "--memory", str(self.folder / "memory"), *options])

    def open(self, serve: str | None = None, *, overlap: bool = True) -> None:
        words = [*CLI, "gateway", "--port", str(self.port), "--folder", f"{self.folder}/gateway"]
        words += ["--spec", str(SPEC)] if overlap else []
        words += ["--serve", serve] if serve else []
        self.gateway = subprocess.Popen(words, env=self.environment, text=True)
        until(lambda: self.status() is not None)
        if serve:
            until(lambda: (self.status() or {})["served"] is not None, self.limit)

    def status(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"{self.url}/cfac/status") as answer:
                return json.load(answer)  # type: ignore[no-any-return]
        except OSError:
            return None

    def served(self) -> str | None:
        served = (self.status() or {}).get("served")
        return served and served["model"]

    def switch(self, to: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CLI, "switch", "--gateway", self.url, "--to", to, *options],
            capture_output=True, text=True, env=self.environment,
        )  # fmt: skip

    def ask(self, model: str, **more: Any) -> tuple[int, str]:
        return self.answer(model, **more)[:2]

    def answer(self, model: str, **more: Any) -> tuple[int, str, Message]:
        """Status, body and headers of the answer to a request for a model."""
        data = json.dumps({"model": model, **more}).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", data=data, headers=kind)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def begin_switch(self, to: str, *options: str) -> Switching:
        """`cfac switch`, without waiting for its end."""
        words = [*CLI, "switch", "--gateway", self.url, "--to", to, *options]
        return Switching(
            subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**self.environment, "PYTHONUNBUFFERED": "1"},
            )
        )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to the gateway."""
        assert self.gateway is not None
        self.gateway.kill()
        self.gateway.wait()

    def ask_at(self, url: str) -> bool:
        """Whether a server answers at an address of its own."""
        try:
            with urllib.request.urlopen(f"{url}/health") as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def servers(self) -> list[str]:
        """The models whose servers live, by their command lines."""
        return sorted(self._servers().values())

    def process_of(self, model: str) -> int:
        """The process of a model's server."""
        return next(pid for pid, name in self._servers().items() if name == model)

    def _servers(self) -> dict[int, str]:
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except (OSError, UnicodeDecodeError):
                continue
            if {*self.marks, self.naming} <= set(words):
                found[int(entry.name)] = words[words.index(self.naming) + 1]
        return found

    def end(self) -> None:
        served = (self.status() or {}).get("served")
        if self.gateway is not None:
            self.gateway.kill()
            self.gateway.wait()
        state = self.folder / "gateway" / "gateway.json"
        known = json.loads(state.read_text()) if state.exists() else {"served": None}
        coming = (known.get("switch") or {}).get("engine")
        for one in (served, known["served"], coming):
            if one:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one["pid"], signal.SIGKILL)


def until(holds: Any, limit: float = 300) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def events(said: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.split()[2] for line in said.stdout.splitlines() if " s  " in line]


def slow_start(house: House, seconds: float) -> None:
    """Let earlier switches have taken so long until the new model needed memory."""
    house.history.append(Record("a", "b", seconds, 0.0, 0.0, 0.0))
