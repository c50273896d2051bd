"""How a chunk's size is chosen, against made-up machines and this one."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfac.native.sizing import (
    DEFAULT,
    LEAST,
    MIB,
    MOST,
    PAGE,
    SEEKING,
    Storage,
    choose,
    show,
    slowest,
    storage,
)

GIB = 1024 * MIB
LARGE = 700 * GIB


@pytest.mark.parametrize(
    ("where", "size"),
    [
        (Storage("ext4", 4096), DEFAULT),
        (Storage("ext4", 4096, rotational=True), SEEKING),
        (Storage("lustre", 4 * MIB), DEFAULT),
        (Storage("gpfs", 16 * MIB), 16 * MIB),
        (Storage("xfs", 4096, 3 * 512 * 1024), 6 * 3 * 512 * 1024),
        (Storage("odd", 5000, 12345), DEFAULT),  # no multiple of a page: not gone by
        (Storage(), DEFAULT),
    ],
)
def test_file_system_and_device(where, size):
    found = choose(LARGE, where, 16, 64 * GIB)
    assert found.size == size
    assert found.reasons


def test_ranks_share_a_chunk():
    assert choose(LARGE, Storage("ext4"), 16, 640 * GIB, ranks=4).size == 4 * DEFAULT
    assert choose(LARGE, Storage("ext4"), 16, 640 * GIB, ranks=64).size == MOST


def test_the_ring_fits_into_a_quarter_of_the_memory():
    found = choose(LARGE, Storage("ext4"), 16, 256 * MIB)
    assert found.size == 4 * MIB
    assert "16 buffers in a quarter of the 256 MiB" in found.reasons[-1]


def test_a_small_model_has_several_chunks():
    assert choose(64 * MIB, Storage("ext4"), 16, 64 * GIB).size == 4 * MIB
    assert choose(1000, Storage("ext4"), 16, 64 * GIB).size == LEAST


@given(
    st.integers(0, 1 << 50), st.integers(1, 512), st.integers(0, 1 << 44), st.integers(1, 100),
    st.integers(0, 1 << 27), st.integers(0, 1 << 27), st.booleans(),
)  # fmt: skip
def test_always_a_size_that_a_plan_takes(total, ring, memory, ranks, block, optimal, seeks):
    where = Storage("x", block, optimal, seeks)
    found = choose(total, where, ring, memory, ranks)
    assert found.size % PAGE == 0 and PAGE <= found.size <= MOST
    if found.size > max(2 * LEAST, block, optimal):
        assert found.size * ring <= max(memory // 4, 0)


def test_what_the_system_says(tmp_path):
    """Made-up /proc and /sys for this folder's device."""
    device = tmp_path.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    root = tmp_path / "root"
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "mountinfo").write_text(
        f"22 1 9999:9 / /x rw - other none rw\n25 1 {name} / / rw shared:1 - xfs /dev/sda1 rw\n"
    )
    queue = root / "sys" / "dev" / "block" / name / "queue"
    queue.mkdir(parents=True)
    (queue / "optimal_io_size").write_text("1572864\n")
    (queue / "rotational").write_text("1\n")
    block = os.statvfs(tmp_path).f_bsize
    assert storage(str(tmp_path), str(root)) == Storage("xfs", block, 1572864, True)
    # A virtio disk's word is not taken.
    virtual = root / "virtio0" / "queue"
    virtual.mkdir(parents=True)
    (virtual / "rotational").write_text("1\n")
    (queue / "optimal_io_size").unlink()
    (queue / "rotational").unlink()
    queue.rmdir()
    queue.symlink_to(virtual)
    assert storage(str(tmp_path), str(root)) == Storage("xfs", block, 0, False)


def test_a_partition_has_the_queue_of_its_disk(tmp_path):
    device = tmp_path.stat().st_dev
    root = tmp_path / "root"
    disk = root / "disk"
    (disk / "part").mkdir(parents=True)
    (disk / "queue").mkdir()
    (disk / "queue" / "optimal_io_size").write_text("65536")
    (root / "sys" / "dev" / "block").mkdir(parents=True)
    link = root / "sys" / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    link.symlink_to(disk / "part")
    assert storage(str(tmp_path), str(root)).optimal == 65536


def test_this_machine_and_no_machine(tmp_path):
    assert storage(str(tmp_path)).block == os.statvfs(tmp_path).f_bsize
    assert storage(str(tmp_path / "absent")) == Storage()


def test_show():
    assert [show(n) for n in (8 * MIB, 3 * GIB, 4096, 4097, 0)] == [
        "8 MiB", "3 GiB", "4 KiB", "4097 bytes", "0 bytes",
    ]  # fmt: skip


def test_several_places_are_as_the_most_demanding_of_them():
    places = [
        Storage("ext4", 4096, 0, True),
        Storage("lustre", 4 * MIB),
        Storage("ext4", 4096, MIB),
    ]
    assert slowest(places) == Storage("ext4, lustre", 4 * MIB, MIB, True)
    assert slowest([]) == Storage()
