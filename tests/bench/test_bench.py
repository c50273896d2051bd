"""The benchmarks' statistics, and that each script runs: small, and without vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "examples" / "bench"
for folder in (BENCH, ROOT / "examples" / "vllm"):
    sys.path.insert(0, str(folder))

import coldstart  # noqa: E402
import demo  # noqa: E402
import stats  # noqa: E402


def script(name, *arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(BENCH / name), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quantiles_interpolate():
    assert stats.quantile([3, 1, 2], 0.5) == 2
    assert stats.quantile([0, 10], 0.99) == pytest.approx(9.9)
    assert stats.quantile([7], 0.99) == 7


def test_the_interval_holds_the_ratio_and_narrows_to_it_without_noise():
    ratio, low, high = stats.ratio_interval([(10, 11), (20, 22), (10, 11)], 200)
    assert ratio == pytest.approx(1.1)
    assert low <= ratio <= high
    assert (low, high) == (pytest.approx(1.1), pytest.approx(1.1))
    ratio, low, high = stats.ratio_interval([(10, 11), (11, 10), (9, 12), (10, 9)], 500)
    assert low < ratio < high


def test_cpu_seconds_counts_descendants_that_run_and_that_ended():
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\n"
    before = stats.cpu_seconds()
    subprocess.run([sys.executable, "-c", spin], check=True, capture_output=True)
    ended = stats.cpu_seconds() - before
    assert 0.25 < ended < 3
    command = [sys.executable, "-c", spin + "time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(0.05)
        assert 0.25 < stats.cpu_seconds() - before - ended < 3
        process.kill()


def test_the_cold_start_summary_of_made_samples():
    samples = {
        "stock": [{"first_token": 20.0 + n, "cpu": 25.0, "second": 0.5} for n in range(5)],
        "fast": [{"first_token": 20.2 + n, "cpu": 25.5, "second": 0.5} for n in range(5)],
    }
    summary = coldstart.summarize(samples)
    assert summary["stock"]["first_token"] == 22
    ratio = summary["ratio"]["fast"]["first_token"]
    assert ratio["low"] <= ratio["median"] <= ratio["high"]
    assert ratio["median"] == pytest.approx(22.2 / 22)
    text = coldstart.show(summary, 5)
    assert "22.00" in text
    assert "1.020" in text


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


@pytest.mark.parametrize("name", ["coldstart.py", "../vllm/demo.py"])
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "run make engine" in done.stderr
