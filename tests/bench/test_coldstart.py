"""The cold-start bench: its summary, and real starts of a small server through all of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import coldstart
import pytest
import sides
import steady
from bench_support import BENCH, ROOT, in_a_process, small_engine

#: A bench of two sides of the small engine: argv is the engine, a folder, a fault, a sleep.
RUN = """
import json, sys
from pathlib import Path
import coldstart, sides, stats
from sides import Server, Side
engine, folder, fault = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
common = {"engine": engine, "model": Path("m"), "environment": {"BOTH": "1"}}
other = Side("other", {"environment": {"FAULT": fault}})
with sides.bench():
    starts = coldstart.Bench(Server, 4, folder, common)
    found = starts.rounds([Side("stock"), other], 2)
    samples = {label: [one.sample for one in own] for label, own in found.items()}
    summary = coldstart.summarize(samples)
    print(coldstart.show(summary, samples))
    stats.write_json(folder / "out.json", {"summary": summary, "samples": samples})
"""


def alive(folder):
    """The pids of processes that were started from ``folder``."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    command = file.read()
            except OSError:
                continue
            if str(folder).encode() in command and int(entry) != os.getpid():
                found.append(int(entry))
    return found


def test_a_bench_of_a_small_server(tmp_path):
    engine = small_engine(tmp_path / "engine")
    done = in_a_process(RUN, engine, tmp_path, "")
    assert done.returncode == 0, done.stderr
    # the stock start first, then each round the other way round; the first two do not count
    order = [line.split()[0] for line in done.stderr.splitlines()]
    assert order == ["stock", "other", "other", "stock", "stock", "other"]
    result = json.loads((tmp_path / "out.json").read_text())
    assert {len(own) for own in result["samples"].values()} == {2}
    for sample in result["samples"]["stock"]:
        assert 0 < sample["ready"] < sample["first_token"]
        assert sample["second"] > 0 and sample["last"] > 0
        assert 64 < sample["pss"] < 200  # its child has 64 MiB
        assert sample["cpu"] > 0 and sample["kernels"] == 0
    assert set(result["summary"]["ratio"]["other"]) == set(coldstart.FIGURES)
    assert "50% interval" in done.stdout
    assert alive(engine) == []


@pytest.mark.parametrize(
    "fault, said",
    [
        ("dies", ["other: the server ended with exit code 3", "this is the log"]),
        ("breaks", ["other: ", "the last words"]),
        ("tokens", ["other, request 3: ['wrong', "]),
        ("logprobs", ["other, request 3: same tokens, logprobs differ by up to 0.25"]),
        ("leaves", ["other left processes behind:", "time.sleep(600)"]),
    ],
)
def test_what_goes_wrong_ends_the_bench_with_the_reason_and_no_process(tmp_path, fault, said):
    engine = small_engine(tmp_path / "engine")
    code = RUN.replace("with sides.bench", "sides.END_SECONDS = 1\nwith sides.bench")
    done = in_a_process(code, engine, tmp_path, fault)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("stock")
    for words in ["failed: ", *said]:
        assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert alive(engine) == [] and not (tmp_path / "out.json").exists()


def test_a_terminated_bench_leaves_no_process(tmp_path):
    engine = small_engine(tmp_path / "engine")
    folders = [BENCH, ROOT / "examples" / "vllm", ROOT]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders)), "SLEEP": "600"}
    command = [sys.executable, "-c", RUN, str(engine), str(tmp_path), ""]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as bench:
        while not [pid for pid in alive(engine) if pid != bench.pid]:
            time.sleep(0.05)
        time.sleep(0.5)
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(300) == 1
    assert alive(engine) == []


def samples(label, first, others=0.0, kernels=0):
    keys = dict.fromkeys(coldstart.FIGURES, 1.0) | {"others": others, "kernels": kernels}
    return {label: [keys | {"first_token": t} for t in first]}


def test_the_summary_of_made_samples():
    stock = [20.0 + n for n in range(9)]
    made = samples("stock", stock) | samples("fast", [t * 0.4 for t in stock], 3.0)
    made |= samples("half", [t * 0.5 for t in stock])
    summary = coldstart.summarize(made)
    assert summary["stock"]["first_token"] == 24
    ratio = summary["ratio"]["fast"]["first_token"]
    assert (ratio["low"], ratio["median"], ratio["high"]) == pytest.approx((0.4, 0.4, 0.4))
    text = coldstart.show(summary, made)
    assert "24.00 s" in text and "0.400" in text and "0.500 to 0.500" in text
    assert "96% interval" in text
    assert "0.0 CPU-seconds during a start (median), 3.0 at most" in text
    assert "NOT WARM" not in text
    made |= samples("half", stock, kernels=2)
    assert "NOT WARM: 18 kernels" in coldstart.show(coldstart.summarize(made), made)


def test_one_start_of_each_has_no_interval():
    made = samples("stock", [20.0]) | samples("fast", [8.0])
    text = coldstart.show(coldstart.summarize(made), made)
    assert "no interval" in text and " to 0.4" not in text


def test_specs_and_their_labels(tmp_path):
    spec = tmp_path / "some.yaml"
    spec.touch()
    assert sides.labelled(str(spec)) == ("some", spec)
    assert sides.labelled(f"gc-off={spec}") == ("gc-off", spec)
    for wrong in (f"stock={spec}", f"a/b={spec}", f"={spec}", f"x={spec}x", "none.yaml"):
        with pytest.raises(sides.argparse.ArgumentTypeError):
            sides.labelled(wrong)


def options(tensor_parallel, no_eager):
    found = sides.argparse.Namespace(
        engine="e", model="m", tensor_parallel=tensor_parallel, no_eager=no_eager
    )
    return sides.common_options(found, Path("/out"))


def test_two_workers_are_bound_to_a_core_each():
    assert "VLLM_CPU_OMP_THREADS_BIND" not in options(1, False)["environment"]
    two = options(2, True)
    assert two["environment"]["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
    assert two["eager"] is False and options(1, False)["eager"] is True


def test_only_an_eager_server_is_told_so():
    server = sides.Server(Path("e"), Path("m"))
    server.port = 1
    assert "--enforce-eager" in server.command()
    server.eager = False
    assert "--enforce-eager" not in server.command()
    assert "--max-model-len=512" in server.command()


# -- steady state -------------------------------------------------------------------

STEADY = """
import json, sys
from pathlib import Path
import sides, steady
from sides import Side
common = {"engine": Path(sys.argv[1]), "model": Path("m")}
other = Side("other", {"environment": json.loads(sys.argv[2])})
with sides.bench():
    rounds = [steady.measure(Side("stock"), other, 20, 1, n, common)[0] for n in range(2)]
    print(steady.show({"other": rounds}))
    print(json.dumps(rounds))
"""


def test_steady_state_tells_a_slower_server(tmp_path):
    engine = small_engine(tmp_path / "engine")
    done = in_a_process(STEADY, engine, json.dumps({"SLEEP": "0.1"}))
    assert done.returncode == 0, done.stderr
    *text, raw = done.stdout.splitlines()
    pairs = [pair for own in json.loads(raw) for pair in own]
    # whichever was started first: the second of a pair is the patched one
    assert len(pairs) == 40 and sum(two > one for one, two in pairs) > 30  # the machine is not idle
    assert " outside " in text[-1] and alive(engine) == []


def test_a_server_runs_only_while_it_is_asked(tmp_path):
    code = """
import sys
from pathlib import Path
import sides, steady
common = {"engine": Path(sys.argv[1]), "model": Path("m")}
with sides.bench(), sides.started(sides.Side("a"), **common) as a:
    a.wait_ready()
    with sides.started(sides.Side("b"), alone=False, **common) as b:
        b.wait_ready()
        seen, complete = [], sides.Server.complete
        def state(server):
            return steady.Path(f"/proc/{server.process.pid}/stat").read_text().split()[2]
        def spy(server, *arguments):
            seen.append("".join("T" if state(one) == "T" else "r" for one in (a, b)))
            return complete(server, *arguments)
        sides.Server.complete = spy
        steady.alternate(a, b, 2, 1)
        print(seen, state(a) != "T", state(b) != "T")
"""
    done = in_a_process(code, small_engine(tmp_path / "engine"))
    assert done.stdout.strip() == "['rT', 'Tr', 'Tr', 'rT'] True True", done.stderr


def test_steady_state_demands_equal_answers(tmp_path):
    engine = small_engine(tmp_path / "engine")
    done = in_a_process(STEADY, engine, json.dumps({"FAULT": "logprobs"}))
    assert done.returncode == 1 and "failed: pair 2:" in done.stderr
    assert alive(engine) == []


@pytest.mark.parametrize(
    "low, high, said",
    [(0.98, 1.02, "inside"), (0.9, 1.0, "not known"), (1.04, 1.1, "outside")],
)
def test_the_verdict_is_the_whole_intervals(low, high, said):
    assert steady.verdict(steady.Ratio((low + high) / 2, low, high, 0.95)) == said


@pytest.mark.parametrize(
    "requests, servers, each", [(400, 2, [200, 200]), (5, 2, [4, 4]), (1, 1, [2])]
)
def test_requests_are_spread_evenly_over_the_servers(requests, servers, each):
    assert steady.shares(requests, servers) == each
