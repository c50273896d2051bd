"""``cfac cache``: what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from cfac.compiler.cli import cli
from cfac.compiler.commands.cache import Size

ROOT = Path(f"/dev/shm/cfac-test-command-{os.getpid()}")


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("CFAC_CACHE", str(ROOT))

    def call(*arguments: str, expect: int = 0) -> str:
        result = CliRunner().invoke(cli, ["cache", *arguments])
        assert result.exit_code == expect, result.output
        return result.output

    yield call
    shutil.rmtree(ROOT, ignore_errors=True)


@pytest.fixture
def model(tmp_path):
    header = json.dumps({"t": {"dtype": "U8", "shape": [5000], "data_offsets": [0, 5000]}}).encode()
    path = tmp_path / "m" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(5000))
    return path.parent


def test_add_list_evict(run, model):
    assert re.fullmatch(rf"[0-9a-f]{{20}}  0\.000 GB  {model}  added\n", run("add", str(model)))
    assert "is there already" in run("add", str(model))
    listed = run("list")
    assert f"{model}  ready" in listed and "1 entries, 0.000 GB in" in listed
    (entry,) = json.loads(run("list", "--json"))["entries"]
    assert entry["bytes"] == (model / "model.safetensors").stat().st_size
    assert entry["state"] == "ready" and Path(entry["files"][0]).is_file()
    (model / "model.safetensors").touch()
    assert f"{model}  stale" in run("list")
    assert f"{model}  evicted" in run("evict", str(model))
    assert "0 entries" in run("list")


def test_by_key_by_file_and_all(run, model):
    for name in (lambda key: key, lambda _: str(model / "model.safetensors"), lambda _: "--all"):
        key = run("add", str(model)).split()[0]
        assert "evicted" in run("evict", name(key))
        assert "0 entries" in run("list")


def test_refusals_are_one_line(run, model, tmp_path):
    too_small = run("add", str(model), "--budget", "4kB", expect=1)
    assert too_small.startswith("Error: ") and "the budget of 0.000 GB" in too_small
    assert "No such file" in run("add", str(tmp_path / "none"), expect=1)
    assert "is not in the cache" in run("evict", "nothing", expect=1)
    assert "name entries, or give --all" in run("evict", expect=2)
    assert "is no size" in run("add", str(model), "--budget", "4qB", expect=2)
    (model / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    assert "git-lfs" in run("add", str(model), expect=1)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("1.5 GiB", 3 * 2**29), ("500MiB", 500 * 2**20), ("7", 7), ("2t", 2e12)],
)
def test_sizes(text, size):
    assert Size().convert(text, None, None) == size
