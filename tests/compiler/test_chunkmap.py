"""Chunk maps against brute force, and which files make up a model."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import write_file, write_index, write_model

from cfac.compiler.layouts.chunkmap import PAGE, READ_MOST, ChunkMap, cut, read_headers
from cfac.compiler.layouts.files import LayoutError
from cfac.compiler.layouts.report import before_and_after
from cfac.native import binding

CASES = Path(__file__).parents[1] / "cases" / "safetensors"

sizes = st.lists(
    st.one_of(st.integers(0, 40), st.integers(0, 30_000), st.sampled_from([0, 4096, 8192])),
    max_size=12,
)
models = st.lists(sizes, min_size=1, max_size=3)


def made(files: list[list[int]], size: int, pad: int) -> tuple[ChunkMap, list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        starts = write_model(Path(folder), files, pad)
        return cut(read_headers(folder), size, 16), starts


@given(models, st.integers(1, 3), st.integers(0, 40))
@settings(max_examples=120, deadline=None)
def test_every_byte_of_every_tensor_is_in_one_piece(files, pages, pad):
    chunks, starts = made(files, pages * PAGE, pad)
    flat = [(f, size) for f, row in enumerate(files) for size in row]
    assert chunks.tensors == len(flat)
    assert chunks.headers.bytes == sum(size for _, size in flat)
    # By brute force: a list of owners for each byte of each file.
    owners = [[-1] * (start + sum(row)) for start, row in zip(starts, files, strict=True)]
    at = list(starts)
    number = {chunks.name(t): t for t in range(chunks.tensors)}
    extents = {}
    for k, (f, size) in enumerate(flat):
        owners[f][at[f] : at[f] + size] = [number[f"t{k}"]] * size
        extents[number[f"t{k}"]] = (f, at[f], size)
        at[f] += size
    covered = [[0] * len(row) for row in owners]
    for p in range(chunks.pieces):
        c, t = chunks.piece_chunk[p], chunks.piece_item[p]
        f = chunks.chunk_file[c]
        begin, length = chunks.piece_offset[p], chunks.piece_length[p]
        assert length > 0
        assert set(owners[f][begin : begin + length]) == {t}
        low = chunks.chunk_offset[c]
        assert low <= begin and begin + length <= low + chunks.chunk_length[c]
        for k in range(begin, begin + length):
            covered[f][k] += 1
    for f, row in enumerate(owners):
        assert covered[f] == [int(owner >= 0) for owner in row]
    # The relations say the same: tensor.chunks by the grid, the others by inversion.
    for t, (f, begin, size) in extents.items():
        base = starts[f] // PAGE * PAGE
        grid = {(k - base) // chunks.chunk_size for k in (begin, begin + size - 1) if size}
        related = chunks.rows["tensor.chunks"][t]
        assert len(related) == (max(grid) - min(grid) + 1 if size else 0)
        assert all(chunks.chunk_file[c] == f for c in related)
        assert all(t in chunks.rows["chunk.tensors"][c] for c in related)
        assert [chunks.rows["piece.chunk"][p][0] for p in chunks.rows["tensor.pieces"][t]] == list(
            related
        )
    assert [p for row in chunks.rows["chunk.pieces"] for p in row] == list(range(chunks.pieces))
    assert list(chunks.extents()) == [extents[t] for t in sorted(extents) if extents[t][2]]


@given(models, st.integers(1, 3), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_the_report_counts_requests_and_pages(files, pages, pad):
    chunks, starts = made(files, pages * PAGE, pad)
    naive, refined = before_and_after(chunks)
    total = sum(map(sum, files))
    assert naive.wanted == refined.wanted == total
    assert naive.requests == sum(1 for row in files for size in row if size)
    assert refined.requests == chunks.chunks
    touched = 0  # pages with a wanted byte, each once: no request can read less
    for start, row in zip(starts, files, strict=True):
        end = start + sum(row)
        if end > start:
            touched += min(-(-end // PAGE) * PAGE, end) - start // PAGE * PAGE
    assert refined.direct == touched <= naive.direct
    assert refined.most <= chunks.chunk_size


def test_aligned_requests_are_counted(tmp_path):
    start = write_file(tmp_path / "a.safetensors", [("a", 4096), ("b", 4096)])
    (tmp_path / "a.safetensors").unlink()
    pad = 4096 - start
    assert write_file(tmp_path / "a.safetensors", [("a", 4096), ("b", 4096)], pad) == 4096
    chunks = cut(read_headers(tmp_path), 8192, 16)
    naive, refined = before_and_after(chunks)
    assert (naive.requests, naive.aligned, refined.requests, refined.aligned) == (2, 2, 1, 1)
    chunks = cut(read_headers(CASES / "ok_cross_chunk.safetensors"), 4096, 16)
    naive, refined = before_and_after(chunks)
    # Only the first chunk begins inside a page; the last ends with the file.
    assert refined.aligned == refined.requests - 1
    assert naive.aligned == 0


def test_one_read_has_a_limit(tmp_path):
    write_file(tmp_path / "a.safetensors", [("large", READ_MOST + 1)])
    naive, refined = before_and_after(cut(read_headers(tmp_path), 8 << 20, 16))
    assert (naive.requests, naive.calls) == (1, 2)
    assert refined.calls == refined.requests == 256


def test_a_hundred_thousand_tensors_are_a_few_arrays(tmp_path):
    """700 GB in 20 files; the map has no Python object for each tensor, chunk or piece."""
    write_model(tmp_path, [[7_000_000] * 5_000] * 20)
    chunks = cut(read_headers(tmp_path), 8 << 20, 16)
    assert chunks.tensors == 100_000
    assert chunks.headers.bytes == 700_000_000_000
    columns = [getattr(chunks, name) for name in ChunkMap.__slots__]
    size = sum(c.itemsize * len(c) for c in columns if hasattr(c, "itemsize"))
    assert size < 12 << 20
    last = chunks.rows["tensor.chunks"][99_999]
    assert last[-1] == chunks.chunks - 1
    assert chunks.name(99_999) == "t99999"


# -- which files -------------------------------------------------------------------


def failure(path) -> LayoutError:
    with pytest.raises(LayoutError) as caught:
        read_headers(path)
    return caught.value


def test_a_folder_an_index_and_a_file(tmp_path):
    write_model(tmp_path, [[5, 6], [7]])
    assert read_headers(tmp_path).count == 3
    assert read_headers(tmp_path / "m-001.safetensors").count == 1
    names = {"t0": "m-000.safetensors", "t1": "m-000.safetensors"}
    index = write_index(tmp_path, names)
    assert read_headers(index).count == read_headers(tmp_path).count == 2
    assert read_headers(tmp_path).files.index == index
    other = write_index(tmp_path, names, "other")
    assert read_headers(tmp_path).files.index == index  # the hub's own name
    index = index.rename(tmp_path / "another.safetensors.index.json")
    found = failure(tmp_path)
    assert found.code == "CF621" and index.name in str(found) and other.name in str(found)


def test_an_index_picks_one_of_two_tensors_of_the_same_name(tmp_path):
    write_file(tmp_path / "a.safetensors", [("x", 8), ("y", 8)])
    write_file(tmp_path / "b.safetensors", [("x", 16)])
    found = failure(tmp_path)
    assert found.code == "CF620" and "'x'" in str(found)
    assert "a.safetensors" in str(found) and "b.safetensors" in str(found)
    index = write_index(tmp_path, {"x": "b.safetensors", "y": "a.safetensors"})
    chunks = cut(read_headers(index), 4096, 16)
    assert {chunks.name(t): chunks.item_length[t] for t in range(2)} == {"y": 8, "x": 16}
    write_index(tmp_path, {"y": "a.safetensors"})
    assert read_headers(index).count == 2  # what the index is silent about is taken, too
    write_file(tmp_path / "c.safetensors", [("z", 1)])
    write_index(tmp_path, {"y": "a.safetensors", "z": "b.safetensors"})
    found = failure(index)
    assert found.code == "CF621" and "'x'" in str(found) and "does not say" in str(found)


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"t0": "absent.safetensors"}, ["absent.safetensors", "'t0'"]),
        (
            {"t0": "m-001.safetensors", "t1": "m-000.safetensors"},
            ["'t0'", "m-001.safetensors", "another file", "1 more"],
        ),
        ({"nope": "m-000.safetensors"}, ["'nope'", "m-000.safetensors", "no listed file has it"]),
        ({"t0": 3}, ["'t0'", "not text"]),
        ({"t0": "/etc/passwd"}, ["'t0'", "not beside the index"]),
        ({"t0": "../m-000.safetensors"}, ["'t0'", "not beside the index"]),
        ([], ["weight_map"]),
    ],
)
def test_an_index_that_does_not_fit(tmp_path, weight_map, words):
    write_model(tmp_path, [[5], [7]])
    index = write_index(tmp_path, weight_map)
    found = failure(index)
    assert found.code == "CF621"
    assert all(word in str(found) for word in [index.name, *words]), str(found)


@pytest.mark.parametrize(
    "text", ["", "[1", '{"weight_map": {"a": "x", "a": "y"}}', "[" * 100_000, "\udcff"]
)
def test_an_index_that_is_none(tmp_path, text):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text, errors="surrogateescape")
    assert failure(path).code == "CF621"


def test_nothing_to_read(tmp_path):
    assert failure(tmp_path / "absent").code == "CF622"
    assert failure(tmp_path).code == "CF622"
    (tmp_path / "pytorch_model.bin").touch()
    found = failure(tmp_path)
    assert "pytorch_model.bin: convert it" in str(found)


BAD = sorted(CASES.glob("bad_*.safetensors"))
EXPECTED = json.loads((CASES / "expected.json").read_text())


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_file_is_named(path, monkeypatch):
    monkeypatch.chdir(CASES)
    found = failure(path.name)
    assert found.code == "CF620"
    assert str(found).startswith(f"{path.name}: ")  # as it was given


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("bad_dtype_unknown", "t"),
        ("bad_f4_odd_elements", "w"),
        ("bad_neg_shape", "t"),
        ("bad_overlap", "b"),
        ("bad_shape_mismatch_big", "t"),
        ("bad_truncated_by_1", "a"),
    ],
)
def test_a_bad_tensor_is_named(name, tensor):
    assert f"tensor '{tensor}'" in str(failure(CASES / f"{name}.safetensors"))


def test_a_chunk_size_that_is_too_small_for_the_model(tmp_path):
    write_file(tmp_path / "a.safetensors", [("large", 1 << 40)])
    with pytest.raises(LayoutError) as caught:
        cut(read_headers(tmp_path), 4096, 16)
    assert caught.value.code == "CF623"
    assert "larger chunk_size" in str(caught.value)


def test_odd_names_are_shown_on_one_line():
    chunks = cut(read_headers(CASES / "ok_names.safetensors"), 4096, 16)
    for t in range(chunks.tensors):
        assert "\n" not in chunks.shown(t) and len(chunks.shown(t)) < 700


def test_without_the_library_no_header_is_read(tmp_path, monkeypatch):
    write_model(tmp_path, [[5]])
    monkeypatch.setenv(binding.VARIABLE, str(tmp_path / "absent.so"))
    binding.library.cache_clear()
    try:
        found = failure(tmp_path)
    finally:
        monkeypatch.undo()
        binding.library.cache_clear()
    assert found.code == "CF620" and "C library is missing" in str(found)


def test_odd_files(tmp_path):
    pipe = tmp_path / "model.safetensors.index.json"
    os.mkfifo(pipe)
    assert failure(pipe).code == "CF622"  # and does not wait for a writer
    pipe.unlink()
    os.mkfifo(tmp_path / "a.safetensors")
    assert failure(tmp_path).code == "CF620"
    (tmp_path / "a.safetensors").unlink()
    write_file(tmp_path / os.fsdecode(b"\xff.safetensors"), [("x", 3)])
    assert read_headers(tmp_path).count == 1
    assert failure(tmp_path / ("n" * 5000)).code == "CF622"
    index = write_index(tmp_path, {"x": "\ud800.safetensors"})
    assert str(failure(index)).isascii()
