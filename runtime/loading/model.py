"""The checked headers of some files, as Python sees them."""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from ctypes import byref, c_char_p, c_size_t, c_void_p
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from cfac.native import binding
from cfac.native.files import Files, IndexFileError

_TENSOR = struct.Struct("<QQQQQIIII")  # cfac_tensor
_ALLOW_DUPLICATES = 1


class TensorInfo(NamedTuple):
    """What a header says about a tensor.

    ``dtype`` is the header's word (``"BF16"``), ``shape`` counts elements (also of packed types),
    ``begin`` and ``end`` are bytes of the file, ``path`` is absolute.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: str
    begin: int
    end: int
    file: int
    number: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.end - self.begin


class Model:
    """Opens and checks all headers; keeps no descriptor.

    HeaderError, OSError or IndexFileError for what is wrong with any file.
    """

    def __init__(self, files: Files) -> None:
        lib = self.library = binding.library()
        handle, error = c_void_p(), binding.Error()
        paths = (c_char_p * len(files.paths))(*map(_encoded, files.paths))
        flags = _ALLOW_DUPLICATES if files.where else 0
        result = lib.cfac_model_open(paths, len(paths), flags, byref(handle), byref(error))
        binding.check(result, error)
        self.handle = handle
        self._finalizer = weakref.finalize(self, lib.cfac_model_free, handle)
        self._finalizer.atexit = False
        self.paths = [os.fsdecode(lib.cfac_model_path(handle, i)) for i in range(len(paths))]
        self.all = self._tensors()
        self.tensors = self._choose(files)

    def _tensors(self) -> list[TensorInfo]:
        count = c_size_t()
        array = self.library.cfac_model_tensors(self.handle, byref(count))
        if count.value == 0:
            return []
        raw = ctypes.string_at(array, count.value * _TENSOR.size)
        found: list[TensorInfo] = []
        for file, group in groupby(_TENSOR.iter_unpack(raw), itemgetter(7)):
            path, rows = self.paths[file], list(group)
            # A header's names are in one piece of memory, and its shapes in another.
            text, sizes = _Region(), _Region()
            text.take(min(r[0] for r in rows), max(r[0] + r[2] for r in rows))
            shaped = [r for r in rows if r[5]]
            if shaped:
                sizes.take(min(r[1] for r in shaped), max(r[1] + 8 * r[5] for r in shaped))
            numbers = struct.unpack(f"<{len(sizes.data) // 8}Q", sizes.data)
            for name, shape, length, begin, end, ndim, dtype, _, _ in rows:
                at, first = name - text.start, (shape - sizes.start) // 8
                label = text.data[at : at + length].decode()
                dims = numbers[first : first + ndim] if ndim else ()
                word = binding.DTYPES[dtype]
                found.append(TensorInfo(label, word, dims, path, begin, end, file, len(found)))
        return found

    def _choose(self, files: Files) -> dict[str, TensorInfo]:
        """By name, in file order; where a name is in several files, the index decides."""
        chosen: dict[str, TensorInfo] = {}
        for tensor in self.all:
            wanted = files.where.get(tensor.name)
            if wanted is not None and wanted != tensor.file:
                continue
            other = chosen.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise binding.HeaderError(
                    f"tensor {tensor.name!r} is in two files: {other.path} and {tensor.path}",
                    *("DUPLICATE_TENSOR", tensor.name, None),
                )
        for name, number in files.where.items():
            if name not in chosen:
                path = self.paths[number]
                raise IndexFileError(
                    f"{files.index_of[name]}: tensor {name!r} is not in {path}, where it should be"
                )
        return chosen

    def metadata(self) -> dict[str, dict[str, str]]:
        """``__metadata__`` of every file, by its path."""
        found = {}
        for number, path in enumerate(self.paths):
            count = c_size_t()
            pairs = self.library.cfac_model_metadata(self.handle, number, byref(count))
            found[path] = {
                _text(pairs[i].key, pairs[i].key_length): _text(
                    pairs[i].value, pairs[i].value_length
                )
                for i in range(count.value)
            }
        return found

    def read(self, tensor: TensorInfo, begin: int, length: int, into: int) -> None:
        """Read bytes of a tensor to an address, in this thread."""
        error = binding.Error()
        result = self.library.cfac_model_read(
            self.handle, tensor.number, begin, length, into, byref(error)
        )
        binding.check(result, error)


class _Region:
    """A copy of some of the library's memory."""

    start, data = 0, b""

    def take(self, begin: int, end: int) -> None:
        self.start, self.data = begin, ctypes.string_at(begin, end - begin)


def _encoded(path: str) -> bytes:
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise ValueError(f"{path!r}: no path holds a NUL")
    return raw


def _text(address: int | None, length: int) -> str:
    return ctypes.string_at(address, length).decode() if address else ""
