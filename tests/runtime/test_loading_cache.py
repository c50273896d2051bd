"""Checkpoints in memory: found by every loader, whole or not at all, safe to evict."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import checkpoints
import pytest

import cfac
from cfac.runtime.loading import HeaderError, cache

GB = 10**9


@pytest.fixture
def root(monkeypatch):
    """A cache of this test's own, in memory."""
    folder = Path(f"/dev/shm/cfac-test-cache-{os.getpid()}")
    monkeypatch.setenv(cache.VARIABLE, str(folder))
    yield str(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def model(tmp_path):
    return make(tmp_path / "model", 1)


def make(folder: Path, seed: int, size: int = 40_000) -> Path:
    folder.mkdir()
    for shard in (1, 2):
        tensors = checkpoints.filled(seed + shard, *[size] * 5, prefix=f"s{shard}.")
        checkpoints.write(folder / f"model-{shard}.safetensors", tensors)
    return folder


def contents(files) -> dict[str, bytes]:
    with cfac.load(files) as loader:
        return {name: checkpoints.raw(tensor) for name, tensor in loader}


def used(loader) -> bool:
    """Whether a loader reads from the cache, all files or none."""
    assert loader.cached in (0, len(loader.metadata))
    inside = {t.path.startswith(cache.default_root() + "/") for t in loader.tensors.values()}
    assert len(inside) == 1
    return inside.pop()


def python(code: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_loader_reads_the_copy_until_it_is_evicted(root, model):
    expected = contents(model)
    entry, copied = cache.add(model, GB)
    assert (
        copied
        and entry.model == str(model)
        and entry.bytes == sum(path.stat().st_size for path in model.iterdir())
    )
    with cfac.load(model) as loader:
        assert used(loader)
        assert {name: checkpoints.raw(t) for name, t in loader} == expected
    with cfac.load(model, cache=False) as loader:
        assert not used(loader)
    with cfac.load([model / "model-2.safetensors"]) as loader:  # one of its files
        assert used(loader) and len(loader) == 5
    assert cache.evict(entry)
    assert cache.entries(root) == [] and os.listdir(root) == [cache.ADDING]
    assert contents(model) == expected


def test_a_link_to_the_files_finds_them(root, model, tmp_path):
    """As in the Hugging Face hub's snapshots."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in model.iterdir():
        (snapshot / path.name).symlink_to(path)
    cache.add(snapshot, GB)
    for folder in (snapshot, model):
        with cfac.load(folder) as loader:
            assert used(loader)


@pytest.mark.parametrize("change", ["bytes", "replaced", "gone"])
def test_a_changed_file_is_not_taken_from_the_cache(root, model, change):
    old, _ = cache.add(model, GB)
    path = model / "model-1.safetensors"
    times = path.stat()
    if change == "gone":
        path.unlink()
        with cfac.load(model) as loader:
            assert used(loader) and len(loader) == 5
        assert not old.fresh()
        return
    data = path.read_bytes()
    if change == "replaced":
        path.unlink()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with cfac.load(model) as loader:
        assert loader.cached == 1
        assert str(path) in {t.path for t in loader.tensors.values()}
    assert not old.fresh()
    new, copied = cache.add(model, GB)  # takes the stale one out
    assert copied and [entry.key for entry in cache.entries(root)] == [new.key]


def test_the_budget_counts_everything(root, model, tmp_path):
    size = sum(path.stat().st_size for path in model.iterdir())
    cache.add(model, size)
    other = make(tmp_path / "other", 7)
    with pytest.raises(cache.CacheError, match=r"do not fit beside .* into the budget"):
        cache.add(other, 2 * size - 1)
    assert [entry.model for entry in cache.entries(root)] == [str(model)]
    assert sorted(os.listdir(root)) == sorted([cache.ADDING, cache.entries(root)[0].key])
    cache.add(other, 2 * size)
    assert cache.default_budget() > 2 * size


def test_never_more_than_the_memory_that_is_free(root, tmp_path):
    """A sparse file of 1 TB: whatever the budget, nothing is copied."""
    size = 10**12
    header = {"huge": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + size)
    with pytest.raises(cache.CacheError, match=r"1000\.000 GB are wanted"):
        cache.add(path, 10**15)
    assert os.listdir(root) == [cache.ADDING]


def test_what_cannot_be_loaded_is_not_kept(root, model):
    path = model / "model-2.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(HeaderError):
        cache.add(model, GB)
    assert not os.path.exists(root)


def test_a_file_that_changes_while_it_is_copied(root, model):
    path = model / "model-1.safetensors"

    def touch(done, total):
        if done < total:
            os.utime(path)

    with pytest.raises(cache.CacheError, match="changed while it was copied"):
        cache.add(model, GB, progress=touch)
    assert os.listdir(root) == [cache.ADDING]


def test_others_folders_are_not_trusted(root, model):
    os.mkdir(root)
    os.chmod(root, 0o777)
    with pytest.raises(cache.CacheError, match="no folder of this user alone"):
        cache.add(model, GB)
    os.chmod(root, 0o700)
    cache.add(model, GB)
    os.chmod(root, 0o755)
    with cfac.load(model) as loader:
        assert not used(loader)


ADD = """
    import sys
    from cfac.runtime.loading import cache
    print(cache.add(sys.argv[1], 10**9)[1])
"""


def test_several_add_the_same_at_once_and_one_copies(root, model):
    adders = [python(ADD, model) for _ in range(4)]
    said = [adder.communicate()[0].strip() for adder in adders]
    assert sorted(said) == ["False", "False", "False", "True"]
    assert len(cache.entries(root)) == 1


def test_an_adder_that_is_killed_leaves_nothing_that_is_used(root, model):
    """It is killed between two files, then swept by whoever comes next."""
    code = """
        import os, sys
        from cfac.runtime.loading import cache
        def stop(done, total):
            print("copied", flush=True)
            sys.stdin.read()
        cache.add(sys.argv[1], 10**9, progress=stop)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(model)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as adder:
        assert adder.stdout.readline() == "copied\n"
        (part,) = [name for name in os.listdir(root) if name.startswith("part-")]
        assert cache.entries(root) == []
        with cfac.load(model) as loader:
            assert not used(loader)
        cache.sweep(root)
        assert part in os.listdir(root), "a copy under way was swept"
        adder.send_signal(signal.SIGKILL)
    cache.sweep(root)
    assert os.listdir(root) == [cache.ADDING]


@pytest.mark.parametrize("end", ["close", "drop", "kill"])
def test_evicted_while_in_use_goes_with_its_last_user(root, model, end):
    expected = contents(model)
    entry, _ = cache.add(model, GB)
    other = None
    if end == "kill":
        code = """
            import sys, cfac
            loader = cfac.load(sys.argv[1])
            print("open", flush=True)
            sys.stdin.read()
        """
        command = [sys.executable, "-c", textwrap.dedent(code), str(model)]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert other.stdout.readline() == "open\n"
    else:
        loader = cfac.load(model)
    assert not cache.evict(entry)
    assert [found.doomed for found in cache.entries(root)] == [True]
    with cfac.load(model) as late:
        assert not used(late), "nobody new may use it"
    if other is not None:
        other.kill()
        other.communicate()
        cache.sweep(root)
    else:
        assert {name: checkpoints.raw(tensor) for name, tensor in loader} == expected
        if end == "close":
            loader.close()
        del loader
    assert cache.entries(root) == [] and os.listdir(root) == [cache.ADDING]


def test_added_again_while_doomed_it_stays(root, model):
    entry, _ = cache.add(model, GB)
    with cfac.load(model) as loader:
        assert not cache.evict(entry)
        again, copied = cache.add(model, GB)
        assert not copied and again.key == entry.key and not again.doomed
        assert used(loader)
    with cfac.load(model) as loader:
        assert used(loader)


def test_a_forked_child_does_not_remove_what_its_parent_uses(root, model):
    expected = contents(model)
    entry, _ = cache.add(model, GB)
    loader = cfac.load(model)
    assert not cache.evict(entry)
    child = os.fork()
    if child == 0:
        loader.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert {name: checkpoints.raw(tensor) for name, tensor in loader} == expected
    loader.close()
    assert cache.entries(root) == []


def test_at_random_in_several_processes_data_is_always_right(root, tmp_path):
    """Three processes add, evict, load and sweep, 80 times each."""
    models = [make(tmp_path / f"m{n}", 10 * n, 5_000) for n in range(3)]
    code = """
        import random, sys, zlib, ctypes
        import torch
        import cfac
        from cfac.runtime.loading import cache
        seed, *models = sys.argv[1:]
        random = random.Random(int(seed))
        sums, hits = {}, 0
        for _ in range(80):
            model, what = random.choice(models), random.random()
            if what < 0.2:
                cache.add(model, 10**9)
            elif what < 0.4:
                for entry in cache.entries(cache.default_root()):
                    if entry.model == model:
                        cache.evict(entry)
            elif what < 0.5:
                cache.sweep(cache.default_root())
            else:
                with cfac.load(model) as loader:
                    hits += any(t.path.startswith("/dev/shm") for t in loader.tensors.values())
                    total = 0
                    for name, t in loader:
                        total = zlib.crc32(ctypes.string_at(t.data_ptr(), t.nbytes), total)
                assert sums.setdefault(model, total) == total
        print(hits)
    """
    runners = [python(code, seed, *models) for seed in range(3)]
    hits = 0
    for runner in runners:
        said, errors = runner.communicate()
        assert runner.returncode == 0, errors
        hits += int(said)
    assert hits > 0
    cache.sweep(root)
    for entry in cache.entries(root):
        assert cache.evict(entry)
    assert os.listdir(root) == [cache.ADDING]
