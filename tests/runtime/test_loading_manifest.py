"""Checksums of chunks: making a manifest, loading against it, finding damage."""

from __future__ import annotations

import json
import shutil

import pytest
from checkpoints import CASES, by_library, filled, same, write

import cfac
from cfac.runtime.loading import ChecksumError, Manifest, ManifestError

CHUNK = 4096


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, by its definition (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_reference_is_right():
    assert crc32c(b"123456789") == 0xE3069283


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write(folder / "a.safetensors", filled(1, 10, 3000, 0, 17, 5000, prefix="a"), pad=3)
    write(folder / "b.safetensors", filled(2, 2000, 9000, 5, prefix="b"))
    write(folder / "empty.safetensors", {})
    return folder


@pytest.fixture
def manifest(folder, tmp_path):
    path = tmp_path / "manifest.json"
    cfac.load(folder, chunk_size=CHUNK).manifest().write(path)
    return path


def test_a_manifest_holds_the_crc32c_of_every_chunk(folder, manifest):
    data = json.loads(manifest.read_text())
    assert (data["version"], data["chunk_size"]) == (1, CHUNK)
    assert list(data["files"]) == ["a.safetensors", "b.safetensors", "empty.safetensors"]
    for name, entry in data["files"].items():
        whole = (folder / name).read_bytes()
        assert entry["size"] == len(whole)
        start = 8 + int.from_bytes(whole[:8], "little")
        first = start // 4096 * 4096
        cells = range(first, len(whole), CHUNK) if len(whole) > start else ()
        expected = [f"{crc32c(whole[max(cell, start) : cell + CHUNK]):08x}" for cell in cells]
        assert entry["crc32c"] == expected, name
    assert Manifest.read(manifest) == cfac.load(folder, chunk_size=CHUNK, views=True).manifest()


@pytest.mark.parametrize("backend", ["auto", "io_uring", "pread", "buffered"])
@pytest.mark.parametrize("views", [False, True])
def test_good_files_load_and_every_chunk_is_compared(folder, manifest, backend, views):
    model = cfac.load(folder, checksums=manifest, backend=backend, views=views)
    expected = by_library(*sorted(folder.glob("*.safetensors")))
    same(dict(model), expected)
    chunks = sum(len(crcs) for _, crcs in Manifest.read(manifest).files.values())
    assert model.report.verified == chunks
    for name, tensor in expected.items():
        same({name: model.get(name)}, {name: tensor})
    into = {name: tensor.new_zeros(tensor.shape) for name, tensor in expected.items()}
    model.load_into(into)
    same(into, expected)


def test_a_part_is_read_in_whole_chunks(folder, manifest):
    expected = by_library(folder / "a.safetensors")
    chosen = cfac.load(folder, names=["a3", "a1"], checksums=manifest)
    same(dict(chosen), {name: expected[name] for name in ("a1", "a3")})
    assert chosen.report.verified == sum(chosen.report.paths.values())
    assert chosen.report.counters["bytes"] > chosen.report.bytes
    cut = cfac.load(folder, names="a4", slices={"a4": slice(100, 300)}, checksums=manifest)
    ((_, tensor),) = cut
    assert tensor.tolist() == expected["a4"][100:300].tolist()
    assert tensor.untyped_storage().nbytes() == 800
    assert cut.report.verified in (1, 2)
    target = tensor.new_zeros(202)
    cut.load_into({"a4": target[1:201]})
    assert target.tolist() == [0, *tensor.tolist(), 0]


@pytest.mark.parametrize("use", ["iterate", "get", "into", "slice"])
def test_one_wrong_bit_is_found_before_its_tensor_is_handed_out(folder, manifest, use):
    path = folder / "b.safetensors"
    data = bytearray(path.read_bytes())
    tensor = cfac.load(folder).tensors["b1"]
    data[tensor.begin + 20_000] ^= 4
    path.write_bytes(data)
    model = cfac.load(folder, checksums=manifest)
    said = r"b\.safetensors: bytes \d+ to \d+ \(chunk \d+\).*damaged.*'b1'"
    got = []
    with pytest.raises(ChecksumError, match=said):
        if use == "iterate":
            got += (name for name, _ in model)
        elif use == "get":
            model.get("b1")
        elif use == "slice":
            model.get("b1", slice(5000, 5001))
        else:
            model.load_into({"b1": by_library(path)["b1"]})
    assert "b1" not in got
    assert cfac.load(folder, names="a*", checksums=manifest).get("a1") is not None


def test_damage_beside_what_is_wanted_is_found_in_its_chunk(folder, manifest):
    path = folder / "a.safetensors"
    data = bytearray(path.read_bytes())
    tensors = cfac.load(folder).tensors
    data[tensors["a3"].begin] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match="'a3'"):
        cfac.load(folder, checksums=manifest).get("a4", slice(0, 1))


def test_a_manifest_that_does_not_fit(folder, manifest, tmp_path):
    with pytest.raises(ManifestError, match=r"ok_basic.*does not have this file"):
        cfac.load(CASES / "ok_basic.safetensors", checksums=manifest)
    with pytest.raises(ValueError, match="chunk_size 8192 is not the manifest's 4096"):
        cfac.load(folder, checksums=manifest, chunk_size=8192)
    write(folder / "b.safetensors", filled(2, 2000, prefix="b"))
    with pytest.raises(ManifestError, match=r"b\.safetensors: \d+ bytes, \d+ in the manifest"):
        cfac.load(folder, checksums=manifest)
    data = json.loads(manifest.read_text())
    del data["files"]["a.safetensors"]["crc32c"][-1]
    manifest.write_text(json.dumps(data))
    with pytest.raises(ManifestError, match="has no chunk"):
        dict(cfac.load(folder / "a.safetensors", checksums=manifest))
    for text in ("{", "[]", "{}", '{"version": 2}', '{"version": 1, "chunk_size": "x"}'):
        manifest.write_text(text)
        with pytest.raises(ManifestError, match=r"manifest\.json"):
            cfac.load(folder, checksums=manifest)
    shutil.copytree(folder, tmp_path / "again")
    for path in (tmp_path / "again").glob("*"):
        write(path, filled(3, 4, prefix=path.name))
    with pytest.raises(ManifestError, match="two files have one name"):
        cfac.load([folder, tmp_path / "again"]).manifest()
