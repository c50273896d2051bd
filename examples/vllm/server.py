"""Run a real ``vllm serve`` and talk to it: used by the demo, the tests and the benchmarks.

Standard library only.  An engine is a virtual environment (setup_engine.py) and,
for a patched one, a copy of its package that stands before it on PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

#: A fixed, offline, small setting: what is compared must differ in the patch only.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
SETTINGS: dict[str, str | int] = {
    "dtype": "bfloat16",
    "max_model_len": 512,
    "max_num_seqs": 8,
    "seed": 0,
}
LOG_TAIL = 6000


def site_packages(engine: Path) -> Path:
    """The site-packages folder of an engine's environment."""
    return next((engine / "lib").glob("python3*/site-packages"))


def copy_package(engine: Path, target: Path, package: str = "vllm") -> Path:
    """Copy the engine's package to ``target/package`` by hard links; returns ``target``.

    Patching replaces files and never writes into them, so the original stays; Python
    does the same with bytecode, which comes along: a copy starts as fast as the original.
    """
    source = site_packages(engine) / package
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    shutil.copytree(source, target / package, copy_function=os.link)
    return target


def free_port() -> int:
    """A port that nobody has, of those that the kernel gives to nobody by itself (ip(7)).

    It is bound some seconds later: until then no connection and no bind(0) may take it.
    """
    ports = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    end = int(ports.split()[0])
    chance = random.SystemRandom()
    for _ in range(100 if end > 11_000 else 0):
        with contextlib.suppress(OSError), socket.socket() as probe:
            port = chance.randrange(10_000, end)
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """One ``vllm serve`` process.

    ``package`` is the folder of a patched copy (None: stock), ``paths`` further
    entries of PYTHONPATH (where cfac is), ``runs`` the folder for traces, ``eager``
    whether the model runs without being compiled.
    """

    engine: Path
    model: Path
    package: Path | None = None
    tensor_parallel: int = 1
    paths: list[Path] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    eager: bool = True
    cache: Path | None = None
    runs: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0

    def start(self) -> Server:
        """Launch; returns at once."""
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="cfac-server-"))
        self.runs = self.runs or self.folder / "runs"
        self.log_path = self.folder / "log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CFAC_", "VLLM_"))}
        environment |= ENVIRONMENT | {"CFAC_RUNS": str(self.runs)}
        cache = self.cache or self.folder / "cache"
        environment |= {"VLLM_CACHE_ROOT": str(cache), "CFAC_REMEMBER": str(cache / "remembered")}
        first = [self.package] if self.package else []
        environment["PYTHONPATH"] = os.pathsep.join(str(p) for p in [*first, *self.paths])
        environment |= self.environment
        self.started = time.monotonic()
        with self.log_path.open("wb") as log:
            self.process = self.launch(environment, log)
        return self

    def command(self) -> list[str]:
        command = [str(self.engine / "bin" / "vllm"), "serve", str(self.model)]
        command += ["--port", str(self.port), "--host", "127.0.0.1"]
        command += ["--enforce-eager"] if self.eager else []
        command += [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
        return [*command, f"--tensor-parallel-size={self.tensor_parallel}", *self.arguments]

    def launch(self, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(),
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            start_new_session=True,
        )

    def __enter__(self) -> Server:
        return self.start() if self.process is None else self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def log_tail(self) -> str:
        """The log's end, for a message about a failed start."""
        return self.log[-LOG_TAIL:].strip()

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait_ready(self, timeout: float = 400) -> float:
        """Block until /health answers; seconds since the launch.  RuntimeError if it ends."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not self.running():
                raise self.ended()
            url = f"http://127.0.0.1:{self.port}/health"
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
                return time.monotonic() - self.started
            time.sleep(0.02)
        raise RuntimeError(f"the server was not ready within {timeout} s:\n{self.log_tail}")

    def complete(
        self, prompt: str = "The engine starts", tokens: int = 8, *, logprobs: bool = True
    ) -> dict[str, Any]:
        """A greedy completion: its text, and with ``logprobs`` its tokens and their logprobs."""
        body = {
            "model": str(self.model),
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "seed": 0,
            **({"logprobs": 5} if logprobs else {}),
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            choice = json.load(response)["choices"][0]
        if not logprobs:
            return {"text": choice["text"]}
        return {
            "text": choice["text"],
            "tokens": choice["logprobs"]["tokens"],
            "logprobs": choice["logprobs"]["token_logprobs"],
            "top": choice["logprobs"]["top_logprobs"],
        }

    def ended(self) -> RuntimeError:
        """The error of a process that is gone."""
        code = self.process and self.process.returncode
        return RuntimeError(f"the server ended with exit code {code}:\n{self.log_tail}")

    def first_token(self) -> float:
        """Seconds from the launch to the first token of a completion."""
        self.wait_ready()
        self.complete(tokens=1, logprobs=False)
        return time.monotonic() - self.started

    def run_folder(self) -> Path | None:
        """The folder of this server's run, once there is one."""
        found = sorted(self.runs.glob("*/run.json")) if self.runs and self.runs.exists() else []
        return found[-1].parent if found else None

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 60) -> int | None:
        """Stop it, and whatever is left of its session; the exit code."""
        process = self.process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return process.returncode
