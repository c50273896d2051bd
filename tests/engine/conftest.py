"""A real vLLM (CPU build), a tiny model, and patched copies: made once per run, shared.

``CFAC_TEST_ENGINE`` names an environment made by examples/vllm/setup_engine.py;
without it one is made under build/.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real_engine import ROOT, Hooked, Patched, ask, cfac, vllm_server

from cfac.runtime.processes import processes_of_run

VERSION = "0.32.0"


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def engine() -> Path:
    named = os.environ.get("CFAC_TEST_ENGINE")
    folder = Path(named) if named else ROOT / "build" / "engine" / f"vllm-{VERSION}"
    script = ROOT / "examples" / "vllm" / "setup_engine.py"
    subprocess.run([sys.executable, str(script), "--dir", str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def model(engine) -> Path:
    folder = ROOT / "build" / "models" / "tiny"
    script = ROOT / "examples" / "vllm" / "make_model.py"
    environment = os.environ | vllm_server.ENVIRONMENT
    subprocess.run([engine / "bin" / "python", script, folder], check=True, env=environment)
    return folder


@pytest.fixture(scope="session")
def patched(engine, tmp_path_factory):
    """patched(spec, …) -> a copy of the engine with the specs' one patch; a copy for each."""
    made: dict[tuple[Path, ...], Patched] = {}
    patches: dict[tuple[Path, ...], Path] = {}
    build = ROOT / "build" / "engine"

    def make(
        spec: Path = ROOT / "specs" / "vllm" / "process-tree.yaml", *more: Path, fresh=False
    ) -> Patched:
        specs = tuple(path.resolve() for path in (spec, *more))
        if specs in made and not fresh:
            return made[specs]
        if specs not in patches:
            out = tmp_path_factory.mktemp("patches")
            site = vllm_server.site_packages(engine)
            cfac("compile", *map(str, specs), "--engine", str(site), "-o", str(out))
            patches[specs] = next(out.glob("*.patch"))
        patch = patches[specs]
        # hard links need the engine's own file system
        package = build / f"test-{os.getpid()}-{len(folders)}"
        vllm_server.copy_package(engine, package)
        cfac("apply", str(patch), "--engine", str(package))
        result = Patched(package, patch)
        if not fresh:
            made[specs] = result
        folders.append(package)
        return result

    folders: list[Path] = []
    yield make
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def hooked(engine, tmp_path_factory):
    """hooked(spec) -> an environment with that spec's hook installed; one per spec."""
    made: dict[Path, Hooked] = {}

    def make(spec: Path) -> Hooked:
        if spec not in made:
            folder = tmp_path_factory.mktemp("hook")
            environment = Hooked(folder / "environment", engine)
            environment.before = environment.files()
            site = str(vllm_server.site_packages(engine))
            cfac("compile", str(spec), "--engine", site, "-o", str(folder), "--backend", "hook")
            environment.install(next(folder.glob("*.whl")))
            made[spec] = environment
        return made[spec]

    return make


@pytest.fixture(scope="session")
def back_end(request, patched, hooked):
    """back_end(name) -> the fixture that applies a spec in that way."""
    return {"patch": patched, "hook": hooked}.__getitem__


@pytest.fixture(scope="session")
def vllm_cache(tmp_path_factory) -> Path:
    """One VLLM_CACHE_ROOT for all starts: its model-inspection cache is warm after the first."""
    return tmp_path_factory.mktemp("vllm-cache")


@pytest.fixture(scope="session")
def stock_answers(engine, model, vllm_cache):
    """stock_answers(workers) -> what the stock engine answers to PROMPTS: asked once per run."""
    known: dict[int, list[dict]] = {}

    def answers(tensor_parallel: int = 1) -> list[dict]:
        if tensor_parallel not in known:
            server = vllm_server.Server(
                engine, model, tensor_parallel=tensor_parallel, cache=vllm_cache
            ).start()
            try:
                server.wait_ready()
                known[tensor_parallel] = ask(server)
            finally:
                end(server)
        return known[tensor_parallel]

    return answers


@pytest.fixture
def serve(engine, model, vllm_cache, stock_answers):
    """serve(patched, hooked or None, ...) -> a started Server; ended at the end of the test.

    serve.stock(workers) are the stock engine's answers, serve.end() ends all that run.
    """
    servers = []

    def start(
        copy: Patched | Hooked | None = None,
        *,
        installed: bool = True,
        model: Path = model,
        **options,
    ):
        own = engine
        if isinstance(copy, Hooked):
            own, installed = copy.engine, False
            options["environment"] = copy.environment | options.get("environment", {})
        made = vllm_server.Server(
            own,
            model,
            package=copy.package if copy else None,
            paths=[ROOT] if installed else [],
            cache=vllm_cache,
            **options,
        ).start()
        servers.append(made)
        return made

    def end_all():
        while servers:
            end(servers.pop())

    start.end = end_all  # for a test that starts many
    start.stock = stock_answers
    yield start
    end_all()


@pytest.fixture(scope="session")
def report_folder(request) -> Path:
    """Where reports go: beside the summary if there is to be one, else under build/."""
    summary = request.config.getoption("--summary")
    return summary.parent if summary else ROOT / "build" / "soak"


def end(server: vllm_server.Server) -> None:
    """Kill what is left of a server at once: a test that wants a clean stop asks for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.process.pid, signal.SIGKILL)
    run = server.run_folder()
    for pid in processes_of_run(run.name) if run is not None else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.__exit__()
