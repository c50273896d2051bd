"""What the tests on a real engine share, beside the fixtures in conftest.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "vllm"))
sys.path.insert(0, str(ROOT / "tests" / "runtime"))

import server as vllm_server  # noqa: E402
import tiny  # noqa: E402

from cfac.runtime.history import History, read_run  # noqa: E402
from cfac.runtime.processes import processes_of_run  # noqa: E402

__all__ = [
    "ROOT",
    "Hooked",
    "Patched",
    "as_stock",
    "ask",
    "cfac",
    "run",
    "started",
    "tiny",
    "vllm_server",
]


class Patched:
    """A patched copy of the engine's package."""

    def __init__(self, package: Path, patch: Path) -> None:
        self.package = package
        self.patch = patch
        self.log_lines = 1  # of cfac's, in a start without trouble


class Hooked:
    """An environment of its own that sees the engine's packages, and has a spec's hook.

    The engine stands there as it is installed; cfac does not.
    """

    package = None
    log_lines = 2  # the hook's own

    def __init__(self, folder: Path, engine: Path) -> None:
        self.engine = folder
        self.environment = {"CFAC_HOOK": "1"}
        run(engine / "bin" / "python", "-m", "venv", "--without-pip", folder)
        self.site = vllm_server.site_packages(folder)
        # found there, but .pth files in it are not read
        (self.site / "engine.pth").write_text(f"{vllm_server.site_packages(engine)}\n")
        script = (engine / "bin" / "vllm").read_text().split("\n", 1)[1]
        (folder / "bin" / "vllm").write_text(f"#!{folder}/bin/python\n{script}")
        (folder / "bin" / "vllm").chmod(0o755)

    def pip(self, *arguments: str | Path) -> str:
        command = [self.engine / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        return run(*command, *arguments)

    def install(self, wheel: Path) -> None:
        self.pip("install", "--no-deps", "--no-index", wheel)

    def files(self) -> list[str]:
        found = (path.relative_to(self.engine) for path in self.engine.rglob("*"))
        return sorted(str(path) for path in found)


def run(*command: str | Path) -> str:
    """Run a command without anything of cfac's in its environment; its output."""
    hidden = ("CFAC_", "PYTHONPATH")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    done = subprocess.run([*command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def cfac(*arguments: str, expect: int = 0, env: dict[str, str] | None = None) -> str:
    """Run the real command; its output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
    command = [sys.executable, "-m", "cfac.compiler.cli", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == expect, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr


def ask(server: vllm_server.Server) -> list[dict[str, Any]]:
    """The answers to two prompts, greedy, with their logprobs."""
    return [server.complete(), server.complete("One two three", 16)]


def started(history: History) -> dict[str, float]:
    """When each process began, by name; what it does then may have to wait for a CPU."""
    return {event["name"]: event["started"] for event in history.of("process")}


def as_stock(serve, copy: Patched | Hooked, tensor_parallel: int) -> History:
    """A patched start that answers as stock, conforms, needs no fallback and leaves nothing.

    Its run's history.  Parents and children are as in stock, and the log has a line more.
    """
    server = serve(copy, tensor_parallel=tensor_parallel)
    server.wait_ready()
    assert ask(server) == serve.stock(tensor_parallel)
    run = server.run_folder()
    server.stop()
    assert server.process.returncode == 0
    assert tiny.wait_until(lambda: not processes_of_run(run.name), timeout=300)
    history = read_run(run)
    assert tiny.messages(history) == []
    assert list(history.of("fallback")) == []
    tree = {e["name"]: (e["pid"], e["ppid"]) for e in history.of("process")}
    assert tree["EngineCore"][1] == history.info["root"]
    workers = [tree[f"VllmWorker-{i}"] for i in range(tensor_parallel)]
    assert {parent for _, parent in workers} == {tree["EngineCore"][0]}
    lines = [line for line in server.log.splitlines() if line.startswith("cfac: ")]
    assert len(lines) == copy.log_lines, lines
    return history
