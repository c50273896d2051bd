"""The C library: its own tests, plain and under sanitizers, the hostile files, and a fuzz run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "native"
CASES = HERE.parent / "cases" / "safetensors"
EXPECTED = json.loads((CASES / "expected.json").read_text())
VARIANTS = ["plain", "asan", "tsan"]
#: What the parser says; the reasons stand in expected.json.
CODES = {
    "bad_7_bytes": "TOO_SHORT",
    "bad_dtype_unknown": "DTYPE",
    "bad_dup_key_same": "DUPLICATE_KEY",
    "bad_empty": "TOO_SHORT",
    "bad_f4_odd_elements": "PACKED",
    "bad_first_offset": "HOLE",
    "bad_git_lfs_pointer": "GIT_LFS",
    "bad_header_len_0": "HEADER_LENGTH",
    "bad_header_len_gt_file": "HEADER_LENGTH",
    "bad_header_len_u64max": "HEADER_LIMIT",
    "bad_json": "JSON",
    "bad_json_leading_space": "NOT_OBJECT",
    "bad_json_list": "NOT_OBJECT",
    "bad_missing_data_offsets": "MISSING_KEY",
    "bad_missing_dtype": "MISSING_KEY",
    "bad_missing_shape": "MISSING_KEY",
    "bad_neg_shape": "SHAPE",
    "bad_offset_float": "OFFSETS",
    "bad_offset_huge": "OFFSETS",
    "bad_offset_str": "OFFSETS",
    "bad_overlap": "OVERLAP",
    "bad_pickle": "ZIP",
    "bad_reversed": "OFFSETS",
    "bad_shape_mismatch_big": "SIZE",
    "bad_shape_mismatch_small": "SIZE",
    "bad_shape_str": "SHAPE",
    "bad_trailing_bytes": "TRAILING",
    "bad_truncated_by_1": "TRUNCATED",
    "bad_truncated_to_header": "TRUNCATED",
    "bad_utf8": "UTF8",
}

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("make") is None, reason="no C compiler, or no make"
)


def run(*command: str | Path, cwd: Path = HERE, **environment: str) -> str:
    done = subprocess.run(
        list(command),
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def sanitizer(variant: str, folder: Path) -> bool:
    flag = {"plain": "-O0", "asan": "-fsanitize=address,undefined", "tsan": "-fsanitize=thread"}
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    command = ["cc", flag[variant], "empty.c", "-o", "empty"]
    built = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return built.returncode == 0 and not subprocess.run([folder / "empty"], check=False).returncode


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request, tmp_path_factory) -> Path:
    """The folder of one build, made now unless it is up to date."""
    if not sanitizer(request.param, tmp_path_factory.mktemp("probe")):
        pytest.skip(f"the compiler has no {request.param}")
    out = HERE.parents[1] / "build" / "native" / request.param
    run("make", "-s", "-j2", f"VARIANT={request.param}", f"OUT={out}")
    return out


def test_every_behaviour(variant, tmp_path):
    wanted = re.findall(
        r"^TEST\((\w+)\)", "".join(map(Path.read_text, HERE.glob("test_*.c"))), re.M
    )
    ran = run(variant / "tests", TMPDIR=str(tmp_path)).split("\n")
    missing = {f"ok {name}" for name in wanted} - set(ran)
    if variant.name == "tsan":  # its shadow memory is too large for this one
        missing.discard("ok a_sparse_tensor_over_2_gib_is_read_in_steps")
    assert not missing
    assert not list(tmp_path.iterdir())


def load(out: Path, *files: Path) -> list[dict]:
    return [json.loads(line) for line in run(out / "header", *files).splitlines()]


def test_every_hostile_file(variant):
    files = [CASES / name for name in EXPECTED]
    assert len(files) == 54
    for name, found in zip(EXPECTED, load(variant, *files), strict=True):
        expected = EXPECTED[name]
        if expected["verdict"] == "reject":
            assert found.get("code") == CODES[name.removesuffix(".safetensors")], name
            continue
        tensors = {bytes.fromhex(t["name"]).decode(): t for t in found["tensors"]}
        assert tensors.keys() == expected["tensors"].keys(), name
        for key, tensor in expected["tensors"].items():
            digest = hashlib.sha256(bytes.fromhex(tensors[key]["bytes"])).hexdigest()
            got = {"dtype": tensors[key]["dtype"], "shape": tensors[key]["shape"], "sha256": digest}
            assert got == tensor, (name, key)


def test_a_header_over_the_limit_is_not_read(variant, tmp_path):
    path = tmp_path / "sparse.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_001))
    os.truncate(path, 200_000_000)
    assert load(variant, path) == [{"code": "HEADER_LIMIT", "error": -74, "tensor": ""}]


def test_a_hub_cache_snapshot_is_followed(variant, tmp_path):
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    shutil.copy(CASES / "ok_basic.safetensors", blob)
    link = tmp_path / "snapshots" / "main" / "model.safetensors"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../blobs/0123")
    assert load(variant, link) == load(variant, blob)


@pytest.mark.parametrize("variant", ["asan"], indirect=True)  # which sees what goes wrong
def test_mutated_headers_and_plans(variant, tmp_path):
    seeds = sorted(CASES.glob("*.safetensors"))
    out = run(variant / "fuzz", "3", "20", *seeds, TMPDIR=str(tmp_path))
    assert int(out.split()[0]) >= 1000


def test_only_its_own_names_are_exported(tmp_path):
    library = tmp_path / "libcfac.so"
    sources = sorted(SOURCE.glob("*.c"))
    flags = ["-std=c11", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    script = f"-Wl,--version-script={SOURCE / 'cfac.map'}"
    run("cc", *flags, "-fvisibility=hidden", script, "-o", library, *sources, "-lpthread", "-ldl")
    names = run("nm", "-D", "--defined-only", library).split("\n")
    exported = {line.split()[-1].split("@")[0] for line in names if line} - {"CFAC_1"}
    declared = set(re.findall(r"\b(cfac_\w+)\(", (SOURCE / "cfac.h").read_text()))
    assert exported == declared
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library))
    assert all(re.match(r"lib(c|pthread|dl)\.so|ld-linux", name) for name in needed)


def test_the_build_has_all_sources():
    listed = set(re.findall(r"\w+\.c\b", (SOURCE / "CMakeLists.txt").read_text()))
    assert listed == {path.name for path in SOURCE.glob("*.c")}
