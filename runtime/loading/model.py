"""The checked headers of some files, as Python sees them."""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_size_t, c_void_p
from functools import cached_property
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

    What headers say of a tensor is made when it is asked for: a model may have 100,000.

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
        count = c_size_t()
        array = lib.cfac_model_tensors(handle, byref(count))
        self._rows = ctypes.string_at(array, count.value * _TENSOR.size) if count.value else b""
        #: Whether an index decides which tensors these are.
        self.indexed = bool(files.where)
        if self.indexed:
            self.tensors = self._choose(files)

    def __len__(self) -> int:
        """Tensors in all files."""
        return len(self._rows) // _TENSOR.size

    def info(self, number: int) -> TensorInfo:
        """What a header says of a tensor, by its place among all of them, which is file order."""
        at = number * _TENSOR.size
        name, shape, length, begin, end, ndim, dtype, file, _ = _TENSOR.unpack_from(self._rows, at)
        return TensorInfo(
            ctypes.string_at(name, length).decode(),
            binding.DTYPES[dtype],
            struct.unpack(f"<{ndim}Q", ctypes.string_at(shape, 8 * ndim)) if ndim else (),
            self.paths[file],
            *(begin, end, file, number),
        )

    def all(self) -> Iterator[TensorInfo]:
        """All tensors of all files, in file order."""
        return map(self.info, range(len(self)))

    def types(self) -> Iterator[str]:
        """The header's word for the type of each of them."""
        return (binding.DTYPES[row[6]] for row in _TENSOR.iter_unpack(self._rows))

    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(row[4] - row[3] for row in _TENSOR.iter_unpack(self._rows))

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """By name, in file order; those that an index names, if there is one."""
        return {tensor.name: tensor for tensor in self.all()}

    def _choose(self, files: Files) -> dict[str, TensorInfo]:
        """Where a name is in several files, the index decides."""
        chosen: dict[str, TensorInfo] = {}
        for tensor in self.all():
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


def _encoded(path: str) -> bytes:
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise ValueError(f"{path!r}: no path holds a NUL")
    return raw


def _text(address: int | None, length: int) -> str:
    return ctypes.string_at(address, length).decode() if address else ""
