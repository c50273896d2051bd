"""The breadth bench: each row is faster, or as stock with the reason in the log, or it fails."""

from __future__ import annotations

import json

import breadth
import pytest
from bench_support import in_a_process, small_engine
from coldstart import Start
from sides import BenchFailed

#: Two sides of the small engine as one row: argv is the engine, a folder, each side's sleep.
RUN = """
import argparse, json, sys
from pathlib import Path
import breadth, sides
from sides import Side
engine, folder = Path(sys.argv[1]), Path(sys.argv[2])
stock, other = ({"environment": {"SLEEP": word}} for word in sys.argv[3:])
options = argparse.Namespace(engine=engine, models=folder, n=1)
with sides.bench():
    both = [Side("stock", stock), Side("other", other)]
    row = breadth.measure(breadth.ROWS["tiny"], both, options)
    print(breadth.show({"tiny": row}, "other"))
    (folder / "row.json").write_text(json.dumps(row))
"""


def starts(*times, said=()):
    return [Start({"first_token": t}, [], [], None, list(said)) for t in times]


@pytest.mark.parametrize(
    ("times", "said", "expected"),
    [
        ((4.0, 5.0), ["run 1 of plan x"], "faster"),
        ((11.0, 9.0), ["this start is as stock: a reason"],
         "as stock (this start is as stock: a reason)"),
        ((4.0, 5.0), ["core is started by the engine itself: 1 other Python thread(s)"],
         "as stock (core is started by the engine itself: 1 other Python thread(s))"),
    ],
)  # fmt: skip
def test_the_outcome_of_a_row(times, said, expected):
    assert breadth.outcome("x", starts(10.0, 10.0), starts(*times, said=said)) == expected


def test_neither_faster_nor_a_reason_fails():
    with pytest.raises(BenchFailed, match="x was not faster than stock, and its log does not say"):
        breadth.outcome("x", starts(10.0, 10.0), starts(4.0, 10.5, said=["run 1 of plan x"]))


def test_a_row_of_a_small_server(tmp_path):
    """Which of two equal sides is faster is chance, and either way the row says what it was."""
    engine, models = small_engine(tmp_path / "engine"), tmp_path / "models"
    (models / "tiny").mkdir(parents=True)
    done = in_a_process(RUN, engine, models, "0", "0")
    assert [line.split()[0] for line in done.stderr.splitlines()[:4]].count("stock") == 2
    if done.returncode:
        assert "failed: other was not faster than stock, and its log does" in done.stderr
        return
    row = json.loads((models / "row.json").read_text())
    ((stock,), (other,)) = row["samples"].values()
    assert other["first_token"] < stock["first_token"]
    assert row["outcome"] == "faster"
    assert row["settings"] == {
        "model": "tiny", "tensor_parallel": 1, "eager": True, "offline": False,
    }  # fmt: skip
    assert "Llama, a few MB" in done.stdout and "faster" in done.stdout


def test_every_model_of_a_row_can_be_made():
    made = {"tiny", "large", "qwen3", "moe", "vocab"}  # kinds of make_model.py, and --vocab
    assert {row.model for row in breadth.ROWS.values()} == made
