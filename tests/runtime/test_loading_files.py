"""Which files ``cfac.load`` takes, and what it says of those that it does not."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from checkpoints import CASES, by_library, filled, same, write

import cfac
from cfac.runtime.loading import HeaderError, IndexFileError


@pytest.fixture
def sharded(tmp_path):
    """A folder as the hub has them: two shards and their index."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("shard-00001-of-00002.safetensors", "shard-00002-of-00002.safetensors"):
        shutil.copy(CASES / name, folder)
    shutil.copy(CASES / "model.index.json", folder / "model.safetensors.index.json")
    return folder


def expected(folder: Path):
    return by_library(*sorted(folder.glob("*.safetensors")))


def test_a_folder_an_index_and_a_list_are_the_same(sharded):
    shards = sorted(sharded.glob("*.safetensors"))
    index = sharded / "model.safetensors.index.json"
    for files in (sharded, str(sharded), os.fsencode(sharded), index, shards, iter(shards)):
        same(dict(cfac.load(files)), expected(sharded))
    index.unlink()
    same(dict(cfac.load(sharded)), expected(sharded))
    mixed = cfac.load([shards[1], os.fsencode(shards[0])])
    assert list(mixed.tensors) == ["c", "a", "b"]


def test_a_relative_path_still_works_after_chdir(sharded, monkeypatch, tmp_path):
    monkeypatch.chdir(sharded.parent)
    model = cfac.load("model")
    monkeypatch.chdir(tmp_path.parent)
    same(dict(model), expected(sharded))


def test_an_index_says_what_is_missing(sharded):
    index = sharded / "model.safetensors.index.json"
    shutil.copy(CASES / "missing_shard.index.json", index)
    with pytest.raises(FileNotFoundError, match=r"index\.json.*shard-00003-of-00003"):
        cfac.load(sharded)
    shutil.copy(CASES / "missing_tensor.index.json", index)
    with pytest.raises(IndexFileError, match=r"index\.json: tensor 'nope' is not in .*shard-00001"):
        cfac.load(sharded)


def test_one_name_in_two_files_is_an_error_unless_an_index_chooses(tmp_path):
    pair = [CASES / "dup_name_a.safetensors", CASES / "dup_name_b.safetensors"]
    with pytest.raises(HeaderError, match=r"dup_name_a.*dup_name_b.*'same'"):
        cfac.load(pair)
    with pytest.raises(HeaderError, match="two files"):
        cfac.load([pair[0], pair[0]])
    for path in pair:
        shutil.copy(path, tmp_path)
    for chosen in pair:
        # Both files are in the index; another tensor makes it name the file not chosen.
        other = next(p for p in pair if p != chosen)
        write(tmp_path / "more.safetensors", filled(1, 3, prefix="x"))
        weight_map = {"same": chosen.name, "x0": "more.safetensors"}
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
        got = dict(cfac.load([index, tmp_path / other.name]))
        same({"same": got["same"]}, by_library(chosen))


def test_tensors_that_an_index_does_not_name_are_there_too(sharded):
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "shard-00001-of-00002.safetensors"}}))
    assert list(cfac.load(sharded).tensors) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "weight_map"),
        ('{"weight_map": 3}', "weight_map"),
        ('{"weight_map": {"a": 1}}', "'a'"),
        ('{"weight_map": {"a": ""}}', "beside"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "beside the index"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "beside the index"),
        ('{"weight_map": {"a": "x\\u0000"}}', "beside the index"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "'a' is given twice"),
        ("[" * 100_000, "not JSON"),
        ('{"weight_map": {}}', "no files"),
    ],
)
def test_a_bad_index(tmp_path, text, said):
    (tmp_path / "m.index.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        cfac.load(tmp_path / "m.index.json")


def test_several_indexes_are_not_guessed_between(sharded):
    (sharded / "model.safetensors.index.json").rename(sharded / "a.safetensors.index.json")
    assert len(cfac.load(sharded)) == 3
    shutil.copy(CASES / "model.index.json", sharded / "b.safetensors.index.json")
    with pytest.raises(IndexFileError, match=r"a\.safetensors.*b\.safetensors"):
        cfac.load(sharded)


def test_an_index_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors.index.json")
    with pytest.raises(OSError, match="not a regular file"):
        cfac.load(tmp_path)


def test_what_is_no_file(tmp_path):
    (tmp_path / "weights.bin").touch()
    with pytest.raises(FileNotFoundError, match=r"it has weights\.bin: convert it"):
        cfac.load(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"no \*\.safetensors"):
        cfac.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="missing"):
        cfac.load(tmp_path / "missing")
    with pytest.raises(ValueError, match="no files"):
        cfac.load([])
    (tmp_path / "dangling.safetensors").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="dangling"):
        cfac.load(tmp_path / "dangling.safetensors")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"pipe.*not a regular file"):
        cfac.load(tmp_path / "pipe")
    with pytest.raises(ValueError, match="NUL"):
        cfac.load("a\0b")


def test_a_hub_cache_snapshot_is_followed(tmp_path):
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    shutil.copy(CASES / "ok_basic.safetensors", blob)
    link = tmp_path / "snapshots" / "main" / "model.safetensors"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../blobs/0123")
    same(dict(cfac.load(link.parent)), by_library(blob))


def test_a_header_over_the_limit_is_refused_unread(tmp_path):
    path = tmp_path / "sparse.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_001))
    os.truncate(path, 200_000_000)
    with pytest.raises(HeaderError, match="100000000") as caught:
        cfac.load(path)
    assert caught.value.code == "HEADER_LIMIT"


def test_metadata_is_by_file(sharded):
    model = cfac.load(CASES / "ok_no_metadata_format.safetensors")
    assert list(model.metadata.values()) == [{"who": "me"}]
    assert [Path(path).name for path in cfac.load(sharded).metadata] == sorted(
        path.name for path in sharded.glob("*.safetensors")
    )
