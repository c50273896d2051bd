"""That each benchmark's script runs: small, and without vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import demo
import pytest
from bench_support import BENCH, ROOT


def script(name, *arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(BENCH / name), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_channel_benchmark_runs(tmp_path):
    out = tmp_path / "out.json"
    text = script("channel.py", "--rounds", 1, "--wakes", 5, "--events", 50, "--json", out)
    assert all(name in text for name in ("threads", "processes", "coroutines"))
    medians = json.loads(out.read_text())["medians"]
    assert all(found["p99_us"] >= found["p50_us"] > 0 for found in medians.values())


def test_the_command_line_benchmark_runs(tmp_path):
    engine = ROOT / "examples" / "tiny_engine"
    spec, out = engine / "startup.yaml", tmp_path / "out.json"
    text = script("cli.py", "-n", 1, "--spec", spec, "--engine", engine, "--json", out)
    assert "cfac compile" in text
    assert set(json.loads(out.read_text())["medians"]) >= {"cfac --help", "cfac check"}


@pytest.mark.parametrize("name", ["coldstart.py", "steady.py", "../vllm/demo.py"])
def test_the_scripts_that_need_vllm_say_how_they_are_called(name):
    assert "--engine" in script(name, "--help")


def answer(text="a b", logprobs=(-1.0, -2.0)):
    return {"text": text, "tokens": text.split(), "logprobs": list(logprobs), "top": []}


def test_the_demo_tells_different_answers_from_equal_ones():
    stock = [answer() for _ in demo.PROMPTS]
    assert demo.differences(stock, [answer() for _ in demo.PROMPTS]) == []
    other = [answer(), answer("a c"), answer(logprobs=(-1.0, -2.5))]
    first, second = demo.differences(stock, other)
    assert "stock says 'a b', patched 'a c'" in first
    assert "differ by up to 0.5" in second


def test_the_demo_says_what_is_missing(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "vllm" / "demo.py")]
    command += ["--engine", str(tmp_path / "none"), "--model", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "run make engine" in done.stderr
