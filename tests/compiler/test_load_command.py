"""``cfac load``: what it prints, and what it refuses."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from cfac.compiler.cli import cli

CASES = Path(__file__).parents[1] / "cases" / "safetensors"


def cfac(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["load", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize("extra", [[], ["--into"], ["--views"]])
def test_rates_stages_and_paths(extra):
    shown = cfac(
        CASES / "ok_cross_chunk.safetensors", "--chunk-size=16384", "--backend=buffered", *extra
    )
    assert "4 tensors, 0.000 GB from 1 files in" in shown
    assert "GB/s" in shown
    assert "  read " in shown
    assert "5 chunks of 16384 bytes" in shown
    assert re.search(r"^  ok_cross_chunk\.safetensors: 0(-\d)?: pread", shown, re.M)


def test_a_forced_backend_and_names():
    shown = cfac(CASES / "model.index.json", "--backend", "io_uring", "--names", "[ac]")
    assert "2 tensors" in shown
    assert "shard-00002-of-00002.safetensors: 0: " in shown
    assert "io_uring" in shown


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bad_overlap.safetensors", "bad_overlap.safetensors"),
        ("bad_git_lfs_pointer.safetensors", "git-lfs pointer"),
        ("missing_shard.index.json", "shard-00003"),
        ("ok_one_of_f6.safetensors", "'f6'"),
        ("not-there", "not-there"),
    ],
)
def test_what_is_refused_is_one_line_and_exit_code_1(name, said):
    shown = cfac(CASES / name, code=1)
    assert said in shown
    assert shown.startswith("Error: ")
    assert shown.count("\n") == 1


def test_a_manifest_is_written_and_verified(tmp_path):
    folder, manifest = tmp_path / "model", tmp_path / "manifest.json"
    folder.mkdir()
    path = folder / "m.safetensors"
    path.write_bytes((CASES / "ok_cross_chunk.safetensors").read_bytes())
    shown = cfac(folder, "--manifest", manifest, "--chunk-size", "4096")
    assert "18 chunks of 4096 bytes in 1 files" in shown
    assert "18 checksums agree" in cfac(folder, "--verify", manifest)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    assert "damaged" in cfac(folder, "--verify", manifest, code=1)


def test_usage():
    assert "Missing argument" in cfac(code=2)
    assert "neither a number nor auto" in cfac(CASES, "--chunk-size", "big", code=2)
