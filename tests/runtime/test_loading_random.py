"""``cfac.load`` with random files and settings, also with trouble in the middle.

The C library is a test build here, so that reads can be cut short, fail or be refused; everything
else is real.  Whatever happens: correct data or a clean error, and nothing is left behind.
"""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path
from random import Random

import pytest
import torch
from checkpoints import (
    BACKENDS,
    LOADABLE,
    by_library,
    descriptors,
    evict,
    memory_kb,
    no_threads,
    raw,
    same,
    with_faults,
    write,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cfac
from cfac.native import binding
from cfac.runtime.loading import LoadError, dtypes

TROUBLES = ("none", "short", "again", "einval", "eio", "truncate", "emfile")


@pytest.fixture(scope="module", autouse=True)
def use_test_build(faulty):
    """This module's loads go through the test build."""
    old = os.environ.get(binding.VARIABLE)
    os.environ[binding.VARIABLE] = str(faulty)
    binding.library.cache_clear()
    yield
    binding.library.cache_clear()
    del os.environ[binding.VARIABLE]
    if old is not None:
        os.environ[binding.VARIABLE] = old


def a_tensor(random: Random) -> tuple[str, list[int], bytes]:
    dtype = random.choice(LOADABLE)
    shape = [random.choice((0, 1, 2, 3, 8, 33, 100)) for _ in range(random.randrange(4))]
    if random.random() < 0.1:
        shape = [random.randrange(1, 60_000)]
    if dtype == "F4":
        shape = [*shape[:-1], (shape[-1] if shape else 1) * 2]
    count = 1
    for size in shape:
        count *= size
    if count * dtypes.bits(dtype) // 8 > 300_000:
        shape, count = [2], 2
    return dtype, shape, random.randbytes(count * dtypes.bits(dtype) // 8)


def a_model(random: Random, folder: Path) -> list[Path]:
    number = 0
    files = []
    for file in range(random.randrange(1, 4)):
        tensors = {}
        for _ in range(random.randrange(12)):
            tensors[f"t{number}"] = a_tensor(random)
            number += 1
        files.append(write(folder / f"{file}.safetensors", tensors, random.randrange(9)))
    return files


def a_setting(random: Random) -> dict:
    return {
        "backend": random.choice(BACKENDS),
        "chunk_size": random.choice(("auto", 4096, 8192, 12288, 65536, 1 << 20)),
        "ring": random.choice((0, 2, 3, 7)),
        "views": random.random() < 0.5,
        "trace": random.random() < 0.3,
    }


def take(random: Random, model: cfac.Loader, expected: dict) -> None:
    """Use a loader in one of the ways there are, and compare."""
    way = random.choice(("keep", "drop", "into", "copy", "get", "stop"))
    if way == "keep":
        same(dict(model), expected)
    elif way in ("drop", "stop"):
        end = random.randrange(len(expected) + 1) if way == "stop" else len(expected)
        iterator = iter(model)
        for _ in range(end):
            name, tensor = next(iterator)
            assert raw(tensor) == raw(expected[name])
            if random.random() < 0.5:
                del tensor
        if way == "drop":
            assert next(iterator, None) is None
        del iterator
    elif way == "get":
        for name in random.sample(list(expected), min(3, len(expected))):
            same({name: model.get(name)}, {name: expected[name]})
    else:
        names = random.sample(list(expected), random.randrange(len(expected) + 1))
        into = {name: torch.empty_like(expected[name]) for name in names}
        if way == "copy":
            into = {n: t.new_empty((2, *t.shape))[1] if t.dim() else t for n, t in into.items()}
        model.load_into(into)
        same(into, {name: expected[name] for name in names})


def one_load(seed: int, folder: Path) -> str:
    """Make a model, load it with random settings and perhaps trouble; says how it went."""
    random = Random(seed)
    files = a_model(random, folder)
    expected = by_library(*files)
    if random.random() < 0.3:
        for path in files:
            evict(path)
    model = cfac.load(files, **a_setting(random))
    trouble = random.choice(TROUBLES)
    faults = {
        "short": {"short_read": random.choice((1, 512, 5000))},
        "again": {"again": random.randrange(1, 9)},
        "einval": {"direct_einval": 1},
        "eio": {"eio_chunk": random.randrange(1, 9)},
        "emfile": {"open_emfile": 1},
    }.get(trouble, {})
    if trouble == "short" and sum(path.stat().st_size for path in files) > 50_000:
        faults = {"short_read": 5000}
    with_faults(model, **faults)
    if trouble == "truncate":
        path = random.choice(files)
        os.truncate(path, random.randrange(path.stat().st_size))
    try:
        take(random, model, expected)
    except LoadError as error:
        assert trouble in ("eio", "truncate"), f"seed {seed}: {error}"
        assert any(path.name in str(error) for path in files), f"seed {seed}: {error}"
        return f"{trouble}: {error.code}"
    finally:
        model.close()
        for path in files:
            path.unlink()
    return f"{trouble}: fine"


def run(seeds: range, folder: Path) -> dict[str, int]:
    for seed in seeds[:10]:
        one_load(seed, folder)
    gc.collect()
    trim = ctypes.CDLL(None).malloc_trim
    trim(0)
    before, memory = descriptors(), memory_kb("Pss_Anon")
    outcomes: dict[str, int] = {}
    for seed in seeds:
        try:
            outcome = one_load(seed, folder)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        assert no_threads(), f"seed {seed}"
    gc.collect()
    trim(0)
    assert descriptors() == before
    assert memory_kb("Pss_Anon") - memory < 20 * 1024
    assert sum(outcomes.values()) == len(seeds)
    return outcomes


def test_a_sample_of_random_loads(tmp_path):
    outcomes = run(range(40), tmp_path)
    assert outcomes["none: fine"] > 0
    assert any(outcome.startswith("eio: READ") for outcome in outcomes)


@pytest.mark.soak
def test_a_thousand_random_loads(tmp_path):
    outcomes = run(range(1000, 2000), tmp_path)
    assert {outcome.split(":")[0] for outcome in outcomes} == set(TROUBLES)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from(LOADABLE), st.lists(st.integers(0, 40), max_size=3)), max_size=8
    ),
    pad=st.integers(0, 8),
    chunk_size=st.sampled_from((4096, 8192, 65536, "auto")),
    ring=st.sampled_from((0, 2, 5)),
    backend=st.sampled_from(BACKENDS),
    views=st.booleans(),
    short=st.sampled_from((0, 1000)),
    seed=st.integers(0, 1 << 20),
)
def test_any_file_and_setting_gives_the_librarys_tensors(
    tmp_path, shapes, pad, chunk_size, ring, backend, views, short, seed
):
    random, tensors = Random(seed), {}
    for number, (dtype, shape) in enumerate(shapes):
        if dtype == "F4":
            shape = [*shape[:-1], (shape[-1] if shape else 1) * 2]
        count = 1
        for size in shape:
            count *= size
        data = random.randbytes(count * dtypes.bits(dtype) // 8)
        tensors[f"t{number}"] = (dtype, shape, data)
    path = write(tmp_path / "m.safetensors", tensors, pad)
    model = cfac.load(path, chunk_size=chunk_size, ring=ring, backend=backend, views=views)
    with_faults(model, short_read=short)
    same(dict(model), by_library(path))
    names = [name for name in tensors if random.random() < 0.5]
    chosen = cfac.load(path, names=names, chunk_size=chunk_size, backend=backend, views=views)
    got = dict(chosen)
    same(got, {name: by_library(path)[name] for name in names})
    assert list(got) == [name for name in model.tensors if name in names]
