"""The loaders' benchmark on small files, with the loaders that the development environment has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from math import prod

import loading
import pytest
from bench_support import BENCH, ROOT

SIDES = ["cfac", "safetensors, mmap", "safetensors, pread", "raw reads"]


@pytest.fixture
def folder():
    """On the checkout's disk: what lies in a tmpfs cannot be evicted."""
    made = ROOT / "build" / f"test-loaders-{os.getpid()}"
    yield made
    shutil.rmtree(made, ignore_errors=True)


def bench(folder, *arguments: str, code: int = 0) -> str:
    options = ["--folder", folder, "--python", sys.executable, "--scale", "0.002"]
    options += [word for side in SIDES for word in ("--side", side)]
    done = subprocess.run(
        [sys.executable, BENCH / "loading.py", *options, *arguments], capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_cell_with_every_loader_gives_the_same_bytes(folder):
    result = folder / "result.json"
    shown = bench(folder, "--rounds", "2", "--json", str(result))
    data = json.loads(result.read_text())
    assert sorted(data["samples"]) == sorted(loading.CELLS) and data["rounds"] == 2
    for cell, sides in data["samples"].items():
        assert f"\n{cell}\n" in shown
        assert sorted(sides) == sorted(SIDES)
        for label, samples in sides.items():
            assert len(samples) == 2
            for sample in samples:
                assert sample["seconds"] > 0 and sample["cpu_seconds"] >= 0
                assert (sample["checksum"] is None) == (label == "raw reads")
        assert len({s["checksum"] for one in sides.values() for s in one if s["checksum"]}) == 1
        for ratio in data["over_cfac"][cell].values():
            for one in (ratio, ratio["cpu"]):
                assert 0 < one["low"] <= one["median"] <= one["high"]
    # what is read into existing tensors needs less memory of its own than what is kept
    kept, filled = (
        data["samples"][f"moe cold {where}"]["raw reads"] for where in ("fresh", "into")
    )
    assert min(s["peak_bytes"] for s in kept) > max(s["peak_bytes"] for s in filled)


def test_a_file_that_a_loader_refuses_is_a_failure_that_names_it(folder):
    paths = loading.make("moe", 0.002, folder)
    os.truncate(paths[0], paths[0].stat().st_size - 10)
    shown = bench(folder, "--rounds", "1", "--cell", "moe warm fresh", code=1)
    assert "failed: cfac: HeaderError: " in shown and paths[0].name in shown


def test_the_checkpoints_are_of_the_stated_sizes():
    for model, tensors, shards, size in (("dense", 147, 2, 4e9), ("moe", 6291, 1, 2e9)):
        made = loading.shapes(model, 1.0)
        assert (len(made), sum(map(len, made))) == (shards, tensors)
        total = sum(2 * prod(shape) for shard in made for shape in shard.values())
        assert abs(total - size) < 0.01 * size


def test_loaders_that_load_different_bytes_are_a_failure():
    class Loaded:
        def __init__(self, label, checksum):
            self.side = loading.Side(label, label)
            self.checksum = checksum

        def ask(self, **request):
            return {"seconds": 1.0, "checksum": self.checksum}

    files = {"moe": {"safetensors": ["a"], "tensorizer": ["a"]}}
    same = [Loaded("cfac", 1), Loaded("other", 1), Loaded("raw", None)]
    loading.measure(same, files, ["moe warm into"], 1)
    with pytest.raises(loading.BenchFailed, match="moe warm into: the loaders loaded different"):
        loading.measure([*same, Loaded("wrong", 2)], files, ["moe warm into"], 1)


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_each_side_is_first_equally_often_in_a_cell(count):
    sides = list(range(count))
    for place in range(3):
        orders = [loading.turned(sides, number, place) for number in range(2 * count)]
        assert all(sorted(order) == sides for order in orders)
        assert sorted(order[0] for order in orders) == sorted(sides * 2)
