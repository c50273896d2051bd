"""``cfac.load(…, group=…)``: gloo ranks as processes of their own (``ranks.py``)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import checkpoints
import pytest
from checkpoints import CASES, filled, write

import cfac

SIZES = {"a": (10, 3000, 0, 17, 5000, 1), "b": (2000, 30_000, 5)}
BYTES = {name: sum(sizes) * 4 for name, sizes in SIZES.items()}


def make_model(folder: Path, seed: int) -> Path:
    folder.mkdir()
    for name, sizes in SIZES.items():
        write(folder / f"{name}.safetensors", filled(seed, *sizes, prefix=name), pad=3 * seed)
    write(folder / "c.safetensors", {"c0": ("F4", [2, 6], b"abcdef"), "c1": ("I64", [], bytes(8))})
    return folder


def run_ranks(scenario: str, ranks: int, folder: Path) -> list[dict | int]:
    """What each rank printed, or minus the signal that killed it."""
    script = Path(__file__).with_name("ranks.py")
    command = [sys.executable, script, scenario]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    found = []
    try:
        for process in running:
            out, err = process.communicate(timeout=300)
            assert process.returncode <= 0, err
            found.append(json.loads(out) if process.returncode == 0 else process.returncode)
    finally:
        for process in running:
            process.kill()
            process.wait()
    return found


@pytest.fixture
def copies(tmp_path):
    """The same model for two ranks, in folders of their own, and its manifest."""
    make_model(tmp_path / "rank0", 1)
    shutil.copytree(tmp_path / "rank0", tmp_path / "rank1")
    manifest = cfac.load(tmp_path / "rank0", chunk_size=8192).manifest()
    manifest.write(tmp_path / "manifest.json")
    return tmp_path


def test_two_ranks_load_the_same_and_read_each_byte_once(copies):
    found = run_ranks("whole", 2, copies)
    total = sum(BYTES.values()) + 6 + 8
    for way in ("buffered", "one page", "checksums"):
        read = [rank[way] for rank in found]
        assert sum(read) == total, (way, read)
        if way != "one page":  # which is no rank's to share
            assert min(read) > total // 8, (way, read)
    assert found[0]["direct"] + found[1]["direct"] >= total


def test_four_ranks_and_two_disjoint_groups(tmp_path):
    for number in range(2):
        make_model(tmp_path / f"model{number}", number + 1)
    found = run_ranks("groups", 4, tmp_path)
    total = sum(BYTES.values()) + 6 + 8
    assert found[0]["read"] + found[1]["read"] == total
    assert found[2]["read"] + found[3]["read"] == total
    assert sum(rank["all"] for rank in found) == total
    for rank in found:
        assert "not in the group" in rank["outsider"]


def test_the_memory_of_four_ranks_is_bounded_and_given_back(tmp_path):
    """40 MB through a ring of 4 MiB, in tensors of 2 MB."""
    (tmp_path / "large").mkdir()
    write(tmp_path / "large" / "m.safetensors", filled(1, *[500_000] * 20))
    for rank in run_ranks("memory", 4, tmp_path):
        # The ring and its pages for the ranks; one tensor under way, one held, one being made.
        assert rank["during"] - rank["before"] < (4 << 10) + 64 + 6 * 1024 + 4096, rank
        assert rank["after"] - rank["rest"] < 4096, rank


def test_when_one_rank_fails_all_raise(copies):
    shutil.copy(CASES / "bad_overlap.safetensors", copies / "bad.safetensors")
    first, second = run_ranks("trouble", 2, copies)
    assert second["bad file"].startswith("HeaderError")
    assert second["get"].startswith("KeyError")
    assert second["shape"].startswith("ValueError")
    assert second["changed"].startswith("LoadError")
    assert "the consumer's own" in second["consumer"]
    for what in ("bad file", "get", "shape", "changed"):
        assert first[what].startswith(f"GroupError: rank 1 of the group failed: {second[what]}")
    assert "GroupError: a rank of the group stopped before the end" in first["consumer"]
    for rank in (first, second):
        assert "ask for different things" in rank["names"]
        assert rank["after"] == "fine"


def test_when_a_rank_is_killed_the_other_raises(copies):
    first, second = run_ranks("killed", 2, copies)
    assert second == -9
    assert first["pass"].startswith("GroupError: a rank of the group is gone")
    assert first["next"].startswith("GroupError")


def test_a_group_of_one_is_as_none(tmp_path):
    folder = make_model(tmp_path / "model", 1)
    script = (
        "import sys, cfac, torch.distributed as dist\n"
        f"store = dist.FileStore({str(tmp_path / 'store')!r}, 1)\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        f"sys.path.insert(0, {str(Path(checkpoints.__file__).parent)!r})\n"
        "from ranks import check; from pathlib import Path\n"
        f"check(Path({str(folder)!r}), dist.group.WORLD)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
