"""``cfac.load``: the hostile files on every read path, and what a `Loader` offers."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path

import checkpoints
import pytest
import torch
from checkpoints import BACKENDS, CASES, EXPECTED, by_library, raw, same

import cfac
from cfac.runtime.loading import HeaderError, UnsupportedTensorError

ACCEPTED = [name for name, case in EXPECTED.items() if case["verdict"] == "accept"]
REJECTED = [name for name, case in EXPECTED.items() if case["verdict"] == "reject"]
#: Every backend forced in turn, with memory of its own and views, in small and usual chunks.
OPTIONS = [
    {"backend": backend, "views": views, "chunk_size": size}
    for backend in BACKENDS
    for views, size in ((False, 4096), (True, 16384), (True, "auto"))
    if backend != "libaio" or size == 4096  # closing one takes the kernel 40 ms
]


@pytest.fixture(params=checkpoints.PLACES)
def place(request, tmp_path):
    """A function that puts a case where the parameter says, and gives its path."""
    opened, copies = [], []

    def put(name: str) -> str:
        data = (CASES / name).read_bytes()
        if request.param == "sealed":
            fd, path = checkpoints.sealed(data)
            opened.append(fd)
            return path
        folder = Path("/dev/shm") if request.param == "tmpfs" else tmp_path
        path = folder / f"cfac-{os.getpid()}-{name}"
        copies.append(path)
        path.write_bytes(data)
        return str(path)

    yield put
    for fd in opened:
        os.close(fd)
    for path in copies:
        path.unlink()


def test_there_are_54_cases():
    assert len(ACCEPTED) + len(REJECTED) + 1 == len(EXPECTED) == 54


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_file_on_every_path(name, place):
    path = place(name)
    expected = by_library(CASES / name)
    for tensor, wanted in EXPECTED[name]["tensors"].items():
        assert hashlib.sha256(raw(expected[tensor])).hexdigest() == wanted["sha256"]
    for options in OPTIONS:
        with cfac.load(path, **options) as model:
            got = dict(model)
            assert list(got) == list(model.tensors), options
            same(got, expected)
            if options["chunk_size"] == 16384:
                continue
            into = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
            model.load_into(into)
            same(into, expected)


@pytest.mark.parametrize("name", REJECTED)
def test_a_rejected_file_is_one_error_before_any_tensor(name, place):
    path = place(name)
    with pytest.raises(HeaderError) as caught:
        cfac.load(path)
    assert path.split("/")[-1] in str(caught.value)
    tensor = caught.value.tensor
    assert repr(tensor) in str(caught.value) if tensor else True
    if name in ("bad_overlap.safetensors", "bad_dtype_unknown.safetensors"):
        assert tensor
    with pytest.raises(HeaderError):  # also behind a good one
        cfac.load([CASES / "ok_basic.safetensors", path])


def test_what_torch_has_no_type_for_raises_and_the_rest_loads():
    model = cfac.load(CASES / "ok_one_of_f6.safetensors")
    for ask in (lambda: next(iter(model)), lambda: model.get("f6"), lambda: list(model)):
        with pytest.raises(UnsupportedTensorError, match=r"ok_one_of_f6.*'f6'.*F6_E2M3"):
            ask()
    assert raw(model.get("w")) == raw(dict(cfac.load(model.tensors["w"].path, names=["w"]))["w"])


def test_an_odd_last_dimension_of_f4_is_that_tensors_error(tmp_path):
    tensors = {"odd": ("F4", [2, 3], b"abc"), "even": ("F4", [3, 2], b"def")}
    model = cfac.load(checkpoints.write(tmp_path / "m.safetensors", tensors))
    with pytest.raises(UnsupportedTensorError, match=r"'odd'.*even"):
        list(model)
    assert raw(model.get("even")) == b"def"


def test_no_path_is_much_slower_on_many_small_tensors():
    path = CASES / "ok_many_small.safetensors"
    seconds = {}
    for backend in BACKENDS:
        runs = []
        for _ in range(5):
            begin = time.process_time()
            assert sum(1 for _ in cfac.load(path, backend=backend)) == 1200
            runs.append(time.process_time() - begin)
        seconds[backend] = min(runs)
    assert max(seconds.values()) < 8 * min(seconds.values()), seconds


def test_a_forced_backend_is_used_or_says_why(tmp_path):
    path = checkpoints.write(tmp_path / "m.safetensors", checkpoints.filled(1, 300_000))
    for backend in ("io_uring", "libaio", "pread", "buffered"):
        model = cfac.load(path, backend=backend, trace=True, chunk_size=65536)
        list(model)
        report = model.report
        assert sum(report.paths.values()) == len(report.chunk_paths) == 19
        used = "pread" if backend == "buffered" else backend
        assert backend in report.refused or all(p.startswith(used) for p in report.paths)
        direct = sum(n for p, n in report.paths.items() if "direct" in p)
        assert (
            direct == (0 if backend == "buffered" else 19) or report.counters["direct_bytes"] == 0
        )


def test_auto_is_direct_for_what_is_not_cached(tmp_path):
    path = checkpoints.write(tmp_path / "m.safetensors", checkpoints.filled(1, 3_000_000))
    path.read_bytes()
    model = cfac.load(path, progress=False)
    list(model)
    assert model.report.counters["direct_bytes"] == 0
    checkpoints.evict(path)
    got = dict(model)
    counters = model.report.counters
    assert counters["direct_bytes"] + counters["buffered_bytes"] >= 12_000_000
    same(got, by_library(path))


@pytest.fixture
def small(tmp_path):
    tensors = {
        "layers.0.weight": ("F32", [6, 4], bytes(range(96))),
        "layers.0.bias": ("BF16", [5], bytes(range(10))),
        "layers.1.weight": ("U8", [3, 2, 2], bytes(range(12))),
        "packed": ("F4", [4, 6], bytes(range(12))),
        "step": ("I64", [], bytes(8)),
        "flat4": ("F4", [8], bytes(range(4))),
    }
    return checkpoints.write(tmp_path / "small.safetensors", tensors)


def test_names_choose(small):
    def chosen(names):
        model = cfac.load(small, names=names)
        assert len(model) == len(model.tensors)
        return [name for name, _ in model]

    assert chosen("layers.*.weight") == ["layers.0.weight", "layers.1.weight"]
    assert chosen(re.compile(r"\.0\.")) == ["layers.0.weight", "layers.0.bias"]
    assert chosen(lambda name: name > "m") == ["packed", "step"]
    assert chosen(["step", "layers.0.bias"]) == ["layers.0.bias", "step"]
    assert chosen("nothing") == []
    assert chosen([]) == []
    with pytest.raises(KeyError, match=r"stpe.*did you mean 'step'"):
        cfac.load(small, names=["stpe"])
    assert "packed" in cfac.load(small)
    assert "packed" not in cfac.load(small, names="layers*")


SLICES = {
    "layers.0.weight": [
        slice(1, 3),
        slice(0, 6),
        slice(5, 2),
        slice(-2, None),
        slice(None, None, 2),
        (slice(2, 5), slice(1, 3)),
        (slice(None), slice(0, 4, 3)),
        slice(4, 99),
    ],
    "layers.1.weight": [(slice(None), slice(1, 2)), (slice(1, 3), slice(None), slice(0, 1))],
    "layers.0.bias": [slice(2, 4), slice(3, 3)],
}


@pytest.mark.parametrize("views", [False, True])
def test_slices(small, views):
    whole = dict(cfac.load(small))
    for name, cuts in SLICES.items():
        for cut in cuts:
            model = cfac.load(small, slices={name: cut}, views=views)
            expected = whole | {name: whole[name][cut].clone()}
            same(dict(model), expected)
            same({name: model.get(name)}, {name: expected[name]})
            same({name: cfac.load(small).get(name, cut)}, {name: expected[name]})
            into = {name: torch.zeros_like(expected[name])}
            model.load_into(into)
            same(into, {name: expected[name]})


def test_packed_types_are_sliced_in_elements_of_the_file(small):
    whole = dict(cfac.load(small))
    rows = cfac.load(small).get("packed", slice(1, 3))
    assert (rows.shape, raw(rows)) == ((2, 3), raw(whole["packed"])[3:9])
    columns = cfac.load(small).get("packed", (slice(0, 4), slice(2, 4)))
    assert (columns.shape, raw(columns)) == ((4, 1), raw(whole["packed"])[1::3])
    assert raw(cfac.load(small).get("flat4", slice(2, 6))) == raw(whole["flat4"])[1:3]
    for name, odd in (("flat4", slice(1, 3)), ("packed", (slice(None), slice(0, 3)))):
        with pytest.raises(ValueError, match=r"two F4 share a byte"):
            cfac.load(small).get(name, odd)


def test_slices_read_only_their_rows(tmp_path):
    tensors = {"big": ("U8", [1000, 4096], os.urandom(1000 * 4096))}
    path = checkpoints.write(tmp_path / "m.safetensors", tensors)
    model = cfac.load(path, slices=lambda tensor: slice(10, 12), backend="buffered")
    ((_, tensor),) = model
    assert raw(tensor) == tensors["big"][2][10 * 4096 : 12 * 4096]
    assert model.report.counters["bytes"] == 2 * 4096
    assert tensor.untyped_storage().nbytes() == 2 * 4096


def test_slices_that_do_not_fit(small):
    for cut, said in (
        (slice(None, None, -1), "forwards"),
        ((slice(0, 1),) * 3, "3 slices"),
        ((0, slice(0, 1)), "no slice"),
    ):
        with pytest.raises(ValueError, match=rf"layers\.0\.weight.*{said}"):
            cfac.load(small, slices={"layers.0.weight": cut})
    with pytest.raises(ValueError, match="step"):
        cfac.load(small).get("step", slice(0, 1))
    with pytest.raises(KeyError, match="nope"):
        cfac.load(small, slices={"nope": slice(0, 1)})


def test_get_is_random_access(small, tmp_path):
    expected = by_library(small)
    model = cfac.load(small)
    same({name: model.get(name) for name in reversed(list(expected))}, expected)
    with pytest.raises(KeyError, match="nope"):
        model.get("nope")
    path = checkpoints.write(tmp_path / "large.safetensors", checkpoints.filled(3, 5_000_000, 3))
    same({"t0": cfac.load(path).get("t0")}, {"t0": by_library(path)["t0"]})


def test_load_into_reads_in_place_where_it_can(tmp_path):
    sizes = (100_000, 50_000, 7, 0)
    path = checkpoints.write(tmp_path / "m.safetensors", checkpoints.filled(5, *sizes))
    expected = by_library(path)
    targets = {name: torch.nn.Parameter(torch.zeros_like(t)) for name, t in expected.items()}
    addresses = {name: tensor.data_ptr() for name, tensor in targets.items()}
    report = cfac.load(path, backend="buffered").load_into(targets)
    same({name: t.detach() for name, t in targets.items()}, expected)
    assert addresses == {name: tensor.data_ptr() for name, tensor in targets.items()}
    assert (report.tensors, report.bytes) == (4, sum(sizes) * 4)
    assert report.counters["in_place_bytes"] == sum(sizes) * 4
    assert (report.counters["placed"], report.counters["owned"]) == (4, 0)


def test_load_into_copies_where_it_must(tmp_path):
    tensors = {
        "turned": ("F32", [3, 5], os.urandom(60)),
        "half": ("F32", [4], torch.arange(4.0).numpy().tobytes()),
        "strided": ("F32", [8], os.urandom(32)),
    }
    path = checkpoints.write(tmp_path / "m.safetensors", tensors)
    expected = by_library(path)
    room = torch.zeros(16)
    targets = {
        "turned": torch.zeros(5, 3).t(),
        "half": torch.zeros(4, dtype=torch.float16),
        "strided": room[::2],
    }
    report = cfac.load(path).load_into(targets)
    assert report.counters["placed"] == 0
    assert raw(targets["turned"]) == raw(expected["turned"])
    assert targets["half"].tolist() == [0, 1, 2, 3]
    assert raw(room[::2]) == raw(expected["strided"])
    assert room[1::2].tolist() == [0] * 8


def test_load_into_shared_memory_is_as_one_after_the_other(tmp_path):
    path = checkpoints.write(tmp_path / "m.safetensors", checkpoints.filled(6, 100, 100, 60))
    expected = by_library(path)
    room = torch.zeros(200)
    targets = {"t1": room[50:150], "t0": room[:100], "t2": room[140:]}
    report = cfac.load(path).load_into(targets)
    assert report.counters["placed"] == 0
    wanted = torch.zeros(200)
    wanted[:100], wanted[50:150] = expected["t0"], expected["t1"]
    wanted[140:] = expected["t2"]
    assert raw(room) == raw(wanted)


def test_load_into_checks_all_before_it_reads(small):
    whole = by_library(small)
    good = torch.zeros_like(whole["layers.0.weight"])
    for name, bad, error, said in (
        ("step", torch.zeros(1, dtype=torch.int64), ValueError, r"'step' has shape \[\]"),
        ("layers.0.bias", torch.zeros(5, device="meta"), ValueError, "no memory"),
        ("nope", torch.zeros(1), KeyError, "nope"),
    ):
        with pytest.raises(error, match=said):
            cfac.load(small).load_into({"layers.0.weight": good, name: bad})
        assert not good.any()


def test_options_out_of_range(small):
    for name, value in (("chunk_size", 5000), ("chunk_size", 0), ("backend", "mmap"), ("ring", 1)):
        with pytest.raises(ValueError, match=f"{name} .*{value}"):
            cfac.load(small, **{name: value})


def test_progress_is_a_line_on_stderr(small, capfd):
    list(cfac.load(small, progress=True))
    shown = capfd.readouterr().err
    assert "100%" in shown
    assert "6/6 tensors" in shown
    assert shown.endswith("\n")
    list(cfac.load(small))
    assert capfd.readouterr().err == ""


def test_only_tensors_import_torch(small):
    import subprocess
    import sys

    script = (
        "import sys, cfac\n"
        f"model = cfac.load({str(small)!r})\n"
        "assert len(model.tensors) == 6 and 'torch' not in sys.modules\n"
        "next(iter(model)); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
