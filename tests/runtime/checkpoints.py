"""What the tests of ``cfac.load`` share: files to load, ways to read them, and comparisons."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import struct
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file

from cfac.runtime.loading import Loader
from cfac.runtime.loading.dtypes import NAMES, bits

CASES = Path(__file__).parents[1] / "cases" / "safetensors"
EXPECTED = json.loads((CASES / "expected.json").read_text())
BACKENDS = ("auto", "io_uring", "libaio", "pread", "buffered")
#: Where files may lie: the disk, a tmpfs, a sealed memory file.
PLACES = ("disk", "tmpfs", "sealed")
LOADABLE = [name for name, torch_name in NAMES.items() if torch_name and hasattr(torch, torch_name)]


def write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]], pad: int = 0) -> Path:
    """A safetensors file, its data at a multiple of 8 bytes plus ``pad``."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + pad)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)
    return path


def filled(seed: int, *sizes: int, dtype: str = "F32", prefix: str = "t") -> dict:
    """Tensors of one dimension, of random bytes."""
    random = Random(seed)
    width = bits(dtype) // 8
    return {
        f"{prefix}{i}": (dtype, [size], random.randbytes(size * width))
        for i, size in enumerate(sizes)
    }


def raw(tensor: torch.Tensor) -> bytes:
    """A tensor's elements as bytes, whatever its type."""
    flat = tensor.detach().contiguous().view(-1) if tensor.dim() else tensor.detach().view(1)
    if flat.numel() == 0:
        return b""
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Names, types, shapes and bytes are equal."""
    assert got.keys() == expected.keys()
    for name, tensor in got.items():
        other = expected[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), name
        assert raw(tensor) == raw(other), name
        assert tensor.data_ptr() % tensor.element_size() == 0, name


def by_library(*paths: Path | str) -> dict[str, torch.Tensor]:
    """What the safetensors library gives."""
    return {name: tensor for path in paths for name, tensor in load_file(path).items()}


def sealed(data: bytes) -> tuple[int, str]:
    """A memory file that cannot shrink, and its path."""
    fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd, f"/proc/self/fd/{fd}"


def evict(path: Path | str) -> None:
    """Take a file out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


class Faults(ctypes.Structure):
    """cfac_faults: made-up trouble, for test builds of the library."""

    _fields_ = [
        (name, ctypes.c_uint32)
        for name in (
            *("short_read", "eio_chunk", "again", "delay_chunk", "delay_ms"),
            *("direct_einval", "open_emfile"),
        )
    ]


def with_faults(model: Loader, **faults: int) -> Loader:
    """A loader that meets trouble; the library must be a test build."""
    model.faults = Faults(**faults)  # kept as long as the loader
    model._settings = replace(model._settings, faults=ctypes.addressof(model.faults))
    return model


def build_faulty(folder: Path) -> Path:
    """A build of the library with CFAC_TEST."""
    out = folder / "libcfac.so"
    sources = sorted((Path(__file__).parents[2] / "native").glob("*.c"))
    flags = ["-std=c11", "-shared", "-fPIC", "-O2", "-DCFAC_TEST"]
    subprocess.run(["cc", *flags, "-o", out, *sources, "-lpthread", "-ldl"], check=True)
    return out


def memory_kb(field: str) -> int:
    """A line of this process's memory, such as ``Rss`` or ``Pss``."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise KeyError(field)


def threads() -> list[str]:
    """Names of this process's threads that are the C library's."""
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
        except FileNotFoundError:
            continue
    return [name for name in names if name == "cfac"]


def no_threads(patience: float = 60) -> bool:
    """Whether the C library's threads are gone; one that was joined may be seen for a moment.

    It wakes who joins it while it ends (CLONE_CHILD_CLEARTID, clone(2)), then leaves /proc.
    """
    deadline = time.monotonic() + patience
    while threads() and time.monotonic() < deadline:
        time.sleep(0.001)
    return not threads()


def descriptors() -> set[str]:
    """Where this process's open descriptors lead."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            continue
    return found
