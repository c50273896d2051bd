"""Existing tensors to read into: many looked at at once by the C library are as one by one."""

from __future__ import annotations

from struct import iter_unpack, pack

import pytest
import torch
from checkpoints import by_library, filled, raw, same, write
from hypothesis import given
from hypothesis import strategies as st

import cfac
from cfac.runtime.loading import targets as looked
from cfac.runtime.loading.dtypes import NAMES, find_dtype
from cfac.runtime.loading.selection import Whole

#: Every type that torch has, F4 apart, which it counts in pairs.
TYPES = [word for word in NAMES if word != "F4" and find_dtype(word) is not None]
#: What a target of 6 elements of float32 may be, beside plain.
ODD = {
    "plain": lambda: torch.zeros(6),
    "view": lambda: torch.zeros(10)[2:8],
    "parameter": lambda: torch.nn.Parameter(torch.zeros(6)),
    "gap": lambda: torch.zeros(12)[::2],
    "broadcast": lambda: torch.zeros(1).expand(6),
    "double": lambda: torch.zeros(6, dtype=torch.float64),
    "negative": lambda: torch.zeros(6, dtype=torch.complex64).conj().imag,
    "negated": lambda: torch._neg_view(torch.zeros(6)),
}


def at_once(model, targets):
    return looked._all_at_once(model._named(targets), targets)


def rows(packed: bytes) -> list[tuple[int, ...]]:
    """As cfac_target: item, on a device, address, bytes."""
    return list(iter_unpack("=IIQQ", packed))


@pytest.mark.parametrize("word", TYPES)
def test_a_tensor_of_each_type_is_seen_by_the_library(tmp_path, word):
    path = write(tmp_path / "m.safetensors", filled(1, 3, 8, dtype=word))
    model = cfac.load(path)
    targets = model.allocate()
    found = at_once(model, targets)
    assert found is not None
    assert rows(found.packed) == [
        (index, 0, tensor.data_ptr(), tensor.nbytes)
        for index, tensor in enumerate(targets.values())
    ]
    model.load_into(targets)
    wanted = dict(cfac.load(path))
    assert [raw(t) for t in targets.values()] == [raw(wanted[name]) for name in targets]


def test_some_of_a_model_in_another_order(tmp_path):
    path = write(tmp_path / "m.safetensors", filled(2, *range(1, 9)))
    model, wanted = cfac.load(path), by_library(tmp_path / "m.safetensors")
    targets = {name: torch.empty_like(wanted[name]) for name in ("t5", "t0", "t3")}
    found = at_once(model, targets)
    assert found is not None
    assert list(found.tensors) == [0, 3, 5]
    assert model.load_into(targets).counters["placed"] == 3
    same(targets, {name: wanted[name] for name in targets})


def test_no_targets_at_all(tmp_path):
    model = cfac.load(write(tmp_path / "m.safetensors", filled(2, 3)))
    assert at_once(model, {}) is not None
    report = model.load_into({})
    assert (report.tensors, report.bytes, report.counters["requests"]) == (0, 0, 0)


def test_shapes_of_no_and_of_one_element(tmp_path):
    tensors = {
        "none": ("F32", [0, 3], b""),
        "scalar": ("F32", [], b"abcd"),
        "ones": ("F32", [1, 2, 1], b"abcdefgh"),
    }
    model = cfac.load(write(tmp_path / "m.safetensors", tensors))
    targets = {
        "none": torch.zeros(0, 3),
        "scalar": torch.zeros(()),
        "ones": torch.zeros(2).as_strided((1, 2, 1), (7, 1, 9)),  # steps of one element are none
    }
    assert at_once(model, targets) is not None
    model.load_into(targets)
    assert raw(targets["ones"]) == b"abcdefgh" and raw(targets["scalar"]) == b"abcd"


@given(st.lists(st.sampled_from(sorted(ODD)), min_size=1, max_size=4), st.data())
def test_at_once_means_what_each_means(tmp_path_factory, kinds, data):
    folder = tmp_path_factory.mktemp("m")
    data_of = {f"t{i}": [i * 6.0 + k for k in range(6)] for i in range(len(kinds))}
    path = write(
        folder / "m.safetensors",
        {name: ("F32", [6], pack("=6f", *values)) for name, values in data_of.items()},
    )
    model = cfac.load(path)
    targets = {f"t{i}": ODD[kind]() for i, kind in enumerate(kinds)}
    if data.draw(st.booleans(), label="one shares memory with another"):
        first, second = (data.draw(st.sampled_from(sorted(targets))) for _ in range(2))
        if targets[first].dtype == torch.float32:
            targets[second] = targets[first]
    wanted = model._named(targets)
    found, each = at_once(model, targets), looked._each(list(wanted), targets, -1)
    assert (found is not None) == (len(each) == len(targets))
    if found is not None:
        assert {n: id(t) for n, t in found.tensors.items()} == {n: id(t) for n, t in each.items()}
    if "broadcast" in kinds:  # torch copies to none whose elements share memory
        return
    model.load_into(targets)
    last = {id(tensor): name for name, tensor in targets.items()}  # in the file, of equal ones
    for tensor in targets.values():
        assert tensor.tolist() == data_of[last[id(tensor)]]


@pytest.mark.parametrize(
    "odd",
    [torch.zeros(6, device="meta"), torch.zeros(6).to_sparse(), torch.zeros(5), torch.zeros(6, 1)],
    ids=["meta", "sparse", "shorter", "more dimensions"],
)
def test_what_has_no_such_memory_is_left_to_each(tmp_path, odd):
    model = cfac.load(write(tmp_path / "m.safetensors", filled(4, 6, 6)))
    assert at_once(model, {"t0": torch.zeros(6), "t1": odd}) is None


def test_a_torch_without_the_functions_is_asked_one_by_one(tmp_path, monkeypatch):
    path = write(tmp_path / "m.safetensors", filled(5, 6, 7))
    monkeypatch.setattr(looked, "_look", lambda: None)
    model = cfac.load(path)
    targets = model.allocate()
    assert at_once(model, targets) is None
    assert model.load_into(targets).counters["placed"] == 2
    same(targets, by_library(path))


def test_columns_are_what_each_tensor_says(tmp_path):
    odd = {"nul\0in": ("U8", [2, 3], bytes(6)), "é": ("F64", [], bytes(8))}
    first = write(tmp_path / "a.safetensors", odd | filled(6, 5, 0, 3))
    second = write(tmp_path / "b.safetensors", filled(7, 4, dtype="BF16", prefix="b"))
    model = cfac.load([first, second])
    inner = model._model
    assert list(inner.all()) == [inner.info(i) for i in range(len(inner))]
    assert list(model) and [name for name, _ in model] == inner.names == list(model.tensors)
    assert inner.names[0] == "nul\0in"
    for info in inner.all():
        expected = (odd | filled(6, 5, 0, 3) | filled(7, 4, dtype="BF16", prefix="b"))[info.name]
        assert (info.dtype, list(info.shape), info.nbytes) == (*expected[:2], len(expected[2]))
    some = Whole(inner, [0, 3, 5])
    assert [w.tensor for w in some] == [inner.info(0), inner.info(3), inner.info(5)]
    assert some.column(inner.names) == [w.tensor.name for w in some]
