"""Many fast starts in a row, each with its own random delays and CPU load.

``CFAC_SOAK_STARTS`` of them (200) in ``make soak``, two in ``make test``.  Each must
serve the expected tokens, follow its spec, need no fallback, and leave nothing.  The
seed is fixed: start N meets the same delays in every session.
"""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import signals
from real_engine import ROOT, tiny
from summary import versions

from cfac.runtime.history import read_run

FAST = ROOT / "specs" / "vllm" / "fast-start.yaml"
STARTS = int(os.environ.get("CFAC_SOAK_STARTS", "200"))
#: The longest delay before or after a state (seconds).
LONGEST = 0.3
SEED = 20261130


def delays(chance: random.Random) -> str:
    """``CFAC_DELAY`` with a delay before and after every state of a start at TP=1."""
    words = []
    for component, state in signals.spec_states(FAST, workers=1):
        for place in ("", ":after"):
            words.append(f"{component}.{state}={chance.uniform(0, LONGEST):.3f}{place}")
    return ",".join(words)


@contextlib.contextmanager
def load(chance: random.Random):
    """Up to two loops that use all the CPU they get; how many there are."""
    levels = [chance.randrange(20) for _ in range(chance.randrange(3))]
    loops = [
        subprocess.Popen(["nice", "-n", str(level), sys.executable, "-c", "while True: pass"])
        for level in levels
    ]
    try:
        yield len(loops)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def one_start(serve, copy, expected, chance):
    """Start, ask, stop; seconds until it was ready, how many loops ran, what is wrong."""
    wrong = []
    ready = None
    with load(chance) as loops:
        server = serve(copy, environment={"CFAC_DELAY": delays(chance)})
        try:
            ready = server.wait_ready()
            answer = server.complete()
        except (RuntimeError, OSError) as error:
            wrong.append(f"it does not serve: {error}")
        else:
            if answer != expected:
                wrong.append(f"it answers {answer}, not {expected}")
            server.stop()
            if server.process.returncode != 0:
                wrong.append(f"exit code {server.process.returncode}")
            wrong += [f"left: {line}" for line in signals.left_after(server)]
        run = server.run_folder()
        if run is None:
            wrong.append("no run was recorded")
        else:
            history = read_run(run)
            wrong += tiny.messages(history)
            wrong += [f"fallback: {event}" for event in history.of("fallback")]
            wrong += [f"failed: {event}" for event in history.of("failed")]
        if wrong:
            wrong.append(server.log[-3000:])
    return ready, loops, wrong


def soak(serve, patched, capsys, count, report: Path):
    """``count`` starts; a line for each, and a summary in ``report``."""
    expected = serve.stock()[0]
    copy = patched(FAST)
    times, failures = [], {}
    for number in range(count):
        ready, loops, wrong = one_start(serve, copy, expected, random.Random(SEED + number))
        if ready is not None:
            times.append(ready)
        if wrong:
            failures[number] = wrong
        outcome = wrong[0].splitlines()[0] if wrong else "serves, conforms"
        seconds = "-" if ready is None else f"{ready:.1f} s"
        with capsys.disabled():
            print(f"\nstart {number + 1}/{count}: {seconds}, load {loops}: {outcome}", end="")
        serve.end()
    data = {
        "versions": versions(),
        "seed": SEED,
        "longest_delay": LONGEST,
        "starts": count,
        "failures": len(failures),
        "failed": {str(number): wrong[:-1] for number, wrong in failures.items()},
        "seconds": {
            "median": round(statistics.median(times), 2) if times else None,
            "max": round(max(times), 2) if times else None,
        },
    }
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    assert failures == {}


@pytest.mark.soak
@pytest.mark.timeout(600 + 120 * STARTS)
def test_many_starts_in_a_row(serve, patched, capsys, report_folder):
    soak(serve, patched, capsys, STARTS, report_folder / "many-starts.json")


def test_two_starts_in_a_row(serve, patched, capsys, tmp_path):
    soak(serve, patched, capsys, 2, tmp_path / "many-starts.json")
