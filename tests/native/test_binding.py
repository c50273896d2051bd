"""The ctypes binding against the header, a build of the library, and its absence."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from ctypes import byref, c_char_p, c_size_t, c_void_p
from pathlib import Path

import pytest

from cfac.native import binding

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "native"
CASES = ROOT / "tests" / "cases" / "safetensors"
STRUCTURES = {
    "cfac_error": binding.Error,
    "cfac_tensor": binding.Tensor,
    "cfac_pair": binding.Pair,
    "cfac_item": binding.Item,
    "cfac_piece": binding.Piece,
    "cfac_chunk": binding.Chunk,
    "cfac_plan_options": binding.PlanOptions,
    "cfac_job_options": binding.JobOptions,
    "cfac_result": binding.Result,
    "cfac_counters": binding.Counters,
    "cfac_event": binding.Event,
}

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A build of the sources as they are now, whatever is installed."""
    path = tmp_path_factory.mktemp("library") / binding.NAME
    sources = sorted(SOURCE.glob("*.c"))
    flags = ["-std=c11", "-shared", "-fPIC", "-O2"]
    subprocess.run(["cc", *flags, "-o", path, *sources, "-lpthread", "-ldl"], check=True)
    old = os.environ.get(binding.VARIABLE)
    os.environ[binding.VARIABLE] = str(path)
    binding.library.cache_clear()
    yield binding.library()
    binding.library.cache_clear()
    del os.environ[binding.VARIABLE]
    if old is not None:
        os.environ[binding.VARIABLE] = old


def test_every_function_is_bound():
    declared = set(re.findall(r"\b(cfac_\w+)\(", (SOURCE / "cfac.h").read_text()))
    assert set(binding.PROTOTYPES) == declared


@needs_compiler
def test_a_library_of_another_version_is_told_before_what_it_lacks(tmp_path, monkeypatch):
    (tmp_path / "old.c").write_text("unsigned cfac_abi(void) { return 1; }")
    command = ["cc", "-shared", "-fPIC", "old.c", "-o", binding.NAME]
    subprocess.run(command, cwd=tmp_path, check=True)
    monkeypatch.setenv(binding.VARIABLE, str(tmp_path / binding.NAME))
    binding.library.cache_clear()
    told = f"is of version 1 of the interface, not {binding.ABI}"
    with pytest.raises(binding.NativeMissingError, match=told):
        binding.library()
    monkeypatch.undo()
    binding.library.cache_clear()


@needs_compiler
def test_structures_are_laid_out_as_in_c(tmp_path):
    lines = ['#include "cfac.h"', "#include <stdio.h>", "int main(void) {"]
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in structure._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    (tmp_path / "layout.c").write_text("\n".join([*lines, "return 0; }"]))
    command = ["cc", f"-I{SOURCE}", "layout.c", "-o", "layout"]
    subprocess.run(command, cwd=tmp_path, check=True)
    out = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout
    expected = dict(line.split() for line in out.splitlines())
    for name, structure in STRUCTURES.items():
        assert ctypes.sizeof(structure) == int(expected[name]), name
        for field, *_ in structure._fields_:
            assert getattr(structure, field).offset == int(expected[f"{name}.{field}"]), field


@needs_compiler
def test_dtypes_and_codes_agree(library):
    for number, name in enumerate(binding.DTYPES):
        assert library.cfac_dtype_name(number) == name.encode()
    assert library.cfac_dtype_name(len(binding.DTYPES)) is None
    codes = {binding.SYSTEM: b"SYSTEM", binding.ARGUMENT: b"ARGUMENT"}
    codes |= {binding.NO_MEMORY: b"NO_MEMORY", binding.NOT_REGULAR: b"NOT_REGULAR"}
    codes |= {binding.FIRST_OF_HEADER: b"TOO_SHORT", binding.LAYOUT: b"LAYOUT"}
    codes |= {binding.DUPLICATE_TENSOR: b"DUPLICATE_TENSOR"}
    assert {code: library.cfac_code_name(code) for code in codes} == codes


def open_model(library, *paths: Path | str) -> int:
    model, error = c_void_p(), binding.Error()
    array = (c_char_p * len(paths))(*(os.fsencode(path) for path in paths))
    result = library.cfac_model_open(array, len(paths), 0, byref(model), byref(error))
    binding.check(result, error)
    return model.value


@needs_compiler
def test_a_file_is_loaded(library):
    model = open_model(library, CASES / "ok_basic.safetensors")
    plan, job, error = c_void_p(), c_void_p(), binding.Error()
    binding.check(library.cfac_plan_make(model, None, 0, None, byref(plan), byref(error)), error)
    options = binding.job_options(flags=1)
    result = library.cfac_job_open(plan, byref(options), byref(job), byref(error))
    binding.check(result, error)
    binding.check(library.cfac_job_start(job, byref(error)), error)
    count = c_size_t()
    tensors = library.cfac_model_tensors(model, byref(count))
    whole = (CASES / "ok_basic.safetensors").read_bytes()
    got = binding.Result()
    for i in range(count.value):
        assert library.cfac_job_next(job, 10_000, byref(got), byref(error)) == 1
        expected = whole[tensors[i].begin : tensors[i].end]
        assert ctypes.string_at(got.data, got.length) == expected
        library.cfac_buffer_release(got.buffer)
    assert library.cfac_job_next(job, 10_000, byref(got), byref(error)) == 0
    library.cfac_job_close(job)
    library.cfac_plan_free(plan)
    library.cfac_model_free(model)


@needs_compiler
def test_errors_are_typed(library, tmp_path):
    with pytest.raises(binding.HeaderError, match=r"bad_overlap.*'b'.*byte") as caught:
        open_model(library, CASES / "bad_overlap.safetensors")
    assert (caught.value.code, caught.value.tensor) == ("OVERLAP", "b")
    assert caught.value.offset is not None
    with pytest.raises(FileNotFoundError, match="missing"):
        open_model(library, tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        open_model(library, tmp_path)
    model = open_model(library, CASES / "ok_basic.safetensors")
    plan, error = c_void_p(), binding.Error()
    options = binding.PlanOptions(chunk_size=5)
    result = library.cfac_plan_make(model, None, 0, byref(options), byref(plan), byref(error))
    with pytest.raises(ValueError, match="multiple of 4096"):
        binding.check(result, error)
    library.cfac_model_free(model)
    with pytest.raises(binding.LoadError) as load_error:
        binding.check(-5, binding.Error(-5, 30, 0, b"t", b"read"))
    assert (load_error.value.errno, load_error.value.code) == (5, "READ")


def test_a_missing_library_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv(binding.VARIABLE, str(tmp_path / "nowhere.so"))
    with pytest.raises(binding.NativeMissingError, match=r"C compiler[^$]*nowhere\.so"):
        binding.library.__wrapped__()
    (tmp_path / "nowhere.so").write_text("not a library")
    with pytest.raises(binding.NativeMissingError, match="cannot be used"):
        binding.library.__wrapped__()
