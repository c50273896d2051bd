"""Two real vLLM servers behind `cfac gateway`, switched to and fro; a `soak` test.

Both engines are patched with the switching spec: the new one waits, in its worker, until
all processes of the old one are gone.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from real_engine import ROOT, vllm_server

from cfac.runtime.history import read_run

SPEC = ROOT / "specs" / "vllm" / "model-switching.yaml"


@pytest.fixture
def gateway(engine, patched, tmp_path):
    """The gateway's address, its folder, and environment; all servers end with it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CFAC_", "VLLM_"))}
    environment |= vllm_server.ENVIRONMENT
    environment |= {
        "CFAC_RUNS": str(tmp_path / "runs"),
        "VLLM_CACHE_ROOT": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(patched(SPEC).package), str(ROOT)]),
    }
    port = vllm_server.free_port()
    command = [sys.executable, "-m", "cfac.compiler.cli", "gateway", "--port", str(port)]
    command += ["--folder", str(tmp_path / "gateway"), "--spec", str(SPEC)]
    process = subprocess.Popen(command, env=environment, cwd=ROOT)
    yield f"http://127.0.0.1:{port}", tmp_path, environment
    process.terminate()
    process.wait(120)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, TypeError):
        os.killpg(
            json.loads((tmp_path / "gateway" / "gateway.json").read_text())["pid"], signal.SIGKILL
        )


def serve(engine: Path, model: Path) -> str:
    command = [f"{engine}/bin/vllm", "serve", str(model), "--host", "127.0.0.1", "--enforce-eager"]
    command += ["--port", str(vllm_server.free_port()), "--served-model-name", model.name]
    command += [f"--{k.replace('_', '-')}={v}" for k, v in vllm_server.SETTINGS.items()]
    return shlex.join(command)


def ask(address: str, model: str, tokens: int = 4) -> tuple[int, dict, float]:
    body = {"model": model, "prompt": "The engine starts", "max_tokens": tokens, "seed": 0}
    body |= {"temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer), time.monotonic()
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), time.monotonic()


def switch(address: str, environment: dict[str, str], command: str) -> str:
    words = [sys.executable, "-m", "cfac.compiler.cli", "switch", "--gateway", address]
    done = subprocess.run(
        [*words, "--to", command], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def until(holds, limit=120):
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def status(address: str) -> dict:
    try:
        with urllib.request.urlopen(f"{address}/cfac/status") as answer:
            return json.load(answer)
    except OSError:
        return {}


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_engines_are_switched_and_no_request_is_lost(gateway, engine, model):
    address, folder, environment = gateway
    other = model.parent / "qwen3"
    script = ROOT / "examples" / "vllm" / "make_model.py"
    subprocess.run(
        [engine / "bin" / "python", script, other, "--kind", "qwen3"],
        check=True, env=os.environ | vllm_server.ENVIRONMENT,
    )  # fmt: skip
    until(lambda: status(address))
    print(switch(address, environment, serve(engine, model)))
    expected = ask(address, model.name)
    assert expected[0] == 200
    with ThreadPoolExecutor(8) as pool:
        for old, new in ((model, other), (other, model)):
            long = pool.submit(ask, address, old.name, 400)
            until(lambda: status(address)["in_flight"] == 1)
            switching = pool.submit(switch, address, environment, serve(engine, new))
            until(lambda new=new: status(address)["coming"] == new.name)
            waiting = [pool.submit(ask, address, new.name) for _ in range(3)]
            code, answer, ended = long.result()
            assert code == 200 and answer["model"] == old.name
            assert answer["usage"]["completion_tokens"] == 400
            answers = [one.result() for one in waiting]
            assert [(a[0], a[1]["model"]) for a in answers] == [(200, new.name)] * 3
            print(switching.result())
            print(f"from the last answer of {old.name} to the first of {new.name}:",
                  f"{min(a[2] for a in answers) - ended:.1f} s")  # fmt: skip
    again = ask(address, model.name)
    assert again[1]["choices"][0]["text"] == expected[1]["choices"][0]["text"]
    runs = sorted(path.parent for path in (folder / "runs").glob("*/run.json"))
    assert len(runs) == 3
    for run in runs[1:]:
        history = read_run(run)
        ready, freed = history.end("new[0]", "EnvReady"), history.end("old[0]", "GMemFreed")
        begun, active = history.begins["new[0]", "Active"][0], history.end("new[0]", "Active")
        assert ready < begun and freed < begun < active
    assert len((folder / "gateway" / "switches.jsonl").read_text().splitlines()) == 2
