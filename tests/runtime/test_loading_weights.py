"""The order of a stock loader: shard after shard, in each by name, whatever the file's order."""

from __future__ import annotations

import checkpoints
import pytest
from safetensors import safe_open

from cfac.runtime.loading import HeaderError
from cfac.runtime.loading.weights import in_stock_order, open_shards


def stock(paths):
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, checkpoints.raw(file.get_tensor(name))


def shuffled(folder, number):
    """A shard whose tensors lie in the file in no order of names, the last name first."""
    tensors = checkpoints.filled(number, *range(2000, 3000, 50), prefix=f"s{number}.")
    names = sorted(tensors, key=lambda name: (hash_of(name, number), name))
    return checkpoints.write(
        folder / f"{number}.safetensors", {name: tensors[name] for name in names}
    )


def hash_of(name, number):
    return (sum(name.encode()) * 7919 * (number + 1)) % 31


@pytest.mark.parametrize("options", [{}, {"views": True, "chunk_size": 4096, "ring": 2}])
def test_as_stock_with_all_tensors_kept(tmp_path, options):
    paths = [shuffled(tmp_path, number) for number in (2, 0, 1)]
    (loader,) = open_shards(paths, **options)
    kept = [(info.name, tensor) for info, tensor in in_stock_order(loader)]
    expected = list(stock(paths))
    assert [info.name for info in loader.tensors.values()] != [name for name, _ in expected]
    assert [(name, checkpoints.raw(tensor)) for name, tensor in kept] == expected


def test_one_name_in_two_shards_comes_twice(tmp_path):
    paths = []
    for number in (1, 2):
        tensors = checkpoints.filled(number, 100, 200)
        paths.append(checkpoints.write(tmp_path / f"{number}.safetensors", tensors))
    loaders = open_shards(paths)
    got = [(i.name, checkpoints.raw(t)) for one in loaders for i, t in in_stock_order(one)]
    assert got == list(stock(paths)) and len({name for name, _ in got}) == 2


def test_what_is_skipped_is_not_read(tmp_path):
    path = checkpoints.write(tmp_path / "m", checkpoints.filled(1, 50_000, 50_000, 50_000))
    (loader,) = open_shards([path], lambda name: name == "t1")
    assert [info.name for info, _ in in_stock_order(loader)] == ["t0", "t2"]
    assert loader.report.bytes == 400_000


def test_a_damaged_last_shard_is_one_error_before_anything_is_read(tmp_path):
    good = checkpoints.write(tmp_path / "1.safetensors", checkpoints.filled(1, 100))
    bad = checkpoints.write(tmp_path / "2.safetensors", checkpoints.filled(2, 100, prefix="u"))
    bad.write_bytes(bad.read_bytes()[:-8])
    with pytest.raises(HeaderError, match=r"2\.safetensors: .*'u0'"):
        open_shards([good, bad])
