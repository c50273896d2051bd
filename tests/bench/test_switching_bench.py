"""The switching bench: its summary and picture, and a chain of real switches of small servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import switching
from bench_support import BENCH, ROOT
from switching_run import Switched

RUNTIME = ROOT / "tests" / "runtime"
#: argv: a folder, a fault of the server (or "").  Two ways, two rounds each.
RUN = """
import json, shlex, sys
from pathlib import Path
import sides, stats, switching
from switching_run import Chain, Way
folder, fault = Path(sys.argv[1]), sys.argv[2]

def command(way, model, port):
    words = [sys.executable, sys.argv[3], "--model", model, "--port", str(port), "--openai"]
    words += ["--memory", str(folder / "memory"), "--environment", "0.5", *way.arguments]
    return shlex.join(words)

ways = [Way(switching.STOCK, None, {}, ["--unpatched"])]
ways.append(Way("switching", switching.SWITCHING, {}, [fault] if fault else []))
with sides.bench():
    chain = Chain(folder, command, ["a", "b"])
    try:
        found = switching.rounds(chain, ways, 2)
    finally:
        chain.end()
    samples = {label: [one.sample for one in own] for label, own in found.items()}
    summary = switching.summarize(samples)
    print(switching.show(summary, samples))
    stats.write_json(folder / "out.json", {"summary": summary, "samples": samples})
    switching.draw(found, folder / "out.svg")
"""


def bench(tmp_path, fault):
    command = [sys.executable, "-c", RUN, str(tmp_path), fault, str(RUNTIME / "small_server.py")]
    path = os.pathsep.join([str(BENCH), str(ROOT)])
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )


def test_a_chain_of_switches_of_small_servers(tmp_path):
    done = bench(tmp_path, "")
    assert done.returncode == 0, done.stderr
    order = [line.split()[:2] for line in done.stderr.splitlines() if line[:2] in ("st", "sw")]
    # the first round does not count; every other round goes the other way round
    assert order == [
        ["stop-start", "b"], ["switching", "a"], ["switching", "b"], ["stop-start", "a"],
        ["stop-start", "b"], ["switching", "a"],
    ]  # fmt: skip
    samples = json.loads((tmp_path / "out.json").read_text())["samples"]
    assert [len(own) for own in samples.values()] == [2, 2]
    for label, own in samples.items():
        for one in own:
            assert 0 < one["stall"] <= one["total"] and one["freed"] > 0
            assert (one["served"] > 0.3) == (label == "switching")  # predicted from the first
    text = (tmp_path / "out.svg").read_text()
    for name in ("stop-start", "switching", "EnvReady", "GMemFreed", "Active"):
        assert name in text
    assert "stall / stop-start" in done.stdout
    left = subprocess.run(["pgrep", "-f", f"{tmp_path}/memory"], capture_output=True, text=True)
    assert left.stdout == ""


def test_a_small_server_that_fails_is_a_message_and_leaves_nothing(tmp_path):
    done = bench(tmp_path, "--die=after")
    assert done.returncode == 1
    assert "the switch to a failed" in done.stderr and "was started again" in done.stderr
    left = subprocess.run(["pgrep", "-f", f"{tmp_path}/memory"], capture_output=True, text=True)
    assert left.stdout == ""


def sample(stall):
    return dict.fromkeys(switching.FIGURES, 1.0) | {"stall": stall}


def test_the_summary_compares_each_way_with_stop_then_start():
    samples = {
        "stop-start": [sample(8.0), sample(12.0), sample(10.0)],
        "together": [sample(2.0), sample(3.0), sample(2.5)],
    }
    summary = switching.summarize(samples)
    assert summary["stop-start"]["stall"] == 10.0 and summary["together"]["stall"] == 2.5
    assert summary["ratio"]["together"]["median"] == pytest.approx(0.25)
    shown = switching.show(summary, samples)
    assert "10.00 s" in shown and "2.50 s" in shown and "0.25 (0.25-0.25)" in shown


def test_the_picture_has_what_the_events_say():
    at = {"closed": 3.0, "freed": 4.0, "env_ready": 3.5, "active": 6.0, "started": 0.1}
    events = {name: {"event": name, "at": value} for name, value in at.items()}
    switched = Switched({"total": 6.5, "stall": 3.5}, events, "", "b")
    found = {bar.name: (bar.begin, bar.end) for bar in switching.picture("x", switched).bars}
    assert found["old.Active"] == (0.0, 3.0) and found["old.GMemFreed"] == (3.0, 4.0)
    assert found["new.EnvReady"] == (0.0, 3.5) and found["new.Active"] == (4.0, 6.0)
    assert found["no answer.stall"] == (3.0, 6.5)
