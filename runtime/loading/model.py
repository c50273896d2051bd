"""The checked headers of some files, as Python sees them."""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_size_t, c_void_p
from functools import cached_property
from itertools import accumulate
from operator import sub
from typing import Any, Literal, NamedTuple

from cfac.native import binding
from cfac.native.files import Files, IndexFileError

_TENSOR = 56  # sizeof(cfac_tensor)
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
        self._rows = ctypes.string_at(array, count.value * _TENSOR) if count.value else b""
        #: Whether an index decides which tensors these are.
        self.indexed = bool(files.where)
        if self.indexed:
            self.tensors = self._choose(files)

    def __len__(self) -> int:
        """Tensors in all files."""
        return len(self._rows) // _TENSOR

    def info(self, number: int) -> TensorInfo:
        """What a header says of a tensor, by its place among all of them, which is file order."""
        return TensorInfo._make([*(column[number] for column in self._columns), number])

    def all(self) -> Iterator[TensorInfo]:
        """All tensors of all files, in file order."""
        return map(TensorInfo._make, zip(*self._columns, range(len(self)), strict=True))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Their places by their names, which no two share unless an index decides."""
        return dict(zip(self.names, range(len(self)), strict=True))

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """By name, in file order; those that an index names, if there is one."""
        return dict(zip(self.names, self.all(), strict=True))

    # What headers say of all tensors, a list each: thousands of rows at a time take a tenth of the
    # time that they take one by one.

    @cached_property
    def _columns(self) -> tuple[list[Any], ...]:
        """As TensorInfo has them, without the number."""
        paths = [self.paths[file] for file in self.files]
        return self.names, self.types, self.shapes, paths, self.begins, self.ends, self.files

    @cached_property
    def names(self) -> list[str]:
        """The names."""
        starts, lengths = self._column("Q", 0), self._column("Q", 16)
        names = self._text(starts, sum(lengths) + len(lengths)).decode().split("\0")[:-1]
        if len(names) != len(starts):  # one holds a NUL
            names = [
                ctypes.string_at(*place).decode() for place in zip(starts, lengths, strict=True)
            ]
        return names

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes, in elements."""
        counts = self._column("I", 40)
        total = sum(counts)
        sizes = struct.unpack(f"={total}Q", self._text(self._column("Q", 8), 8 * total))
        return [sizes[end - n : end] for end, n in zip(accumulate(counts), counts, strict=True)]

    @cached_property
    def types(self) -> list[str]:
        """The header's words for the types."""
        return [binding.DTYPES[dtype] for dtype in self._column("I", 44)]

    @cached_property
    def begins(self) -> list[int]:
        """The first bytes, in the files."""
        return self._column("Q", 24)

    @cached_property
    def ends(self) -> list[int]:
        """The first bytes behind."""
        return self._column("Q", 32)

    @cached_property
    def files(self) -> list[int]:
        """The numbers of the files."""
        return self._column("I", 48)

    @cached_property
    def lengths(self) -> list[int]:
        """Their bytes."""
        return list(map(sub, self.ends, self.begins))

    def _column(self, kind: Literal["Q", "I"], offset: int) -> list[int]:
        """A field of all rows of cfac_tensor: uint64_t (Q) or uint32_t (I) at ``offset``."""
        size = struct.calcsize(kind)
        return memoryview(self._rows).cast(kind)[offset // size :: _TENSOR // size].tolist()

    def _text(self, starts: list[int], size: int) -> bytes:
        """What follows one another in memory, from the first one's place on."""
        return ctypes.string_at(starts[0], size) if starts else b""

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
