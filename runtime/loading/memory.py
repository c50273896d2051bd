"""Tensors over memory of the C library.

A tensor's storage holds a counted reference to the buffer, by DLPack: the memory is freed, or its
ring buffer reused, when the last tensor over it is gone.  No Python code runs then: an interrupt
(Ctrl-C) that came in a ``__del__`` would be lost.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

from cfac.native import binding
from cfac.runtime.loading.selection import Wanted

if TYPE_CHECKING:
    import torch

_NAME = b"dltensor"
_BYTES = 1 << 8 | 8  # DLDataType's code * 256 + bits of uint8, and of those that every torch takes:
_TYPES = {
    "BOOL": 6 << 8 | 8,
    "U8": _BYTES,
    "I8": 8,
    "I16": 16,
    "I32": 32,
    "I64": 64,
    "F16": 2 << 8 | 16,
    "F32": 2 << 8 | 32,
    "F64": 2 << 8 | 64,
    "BF16": 4 << 8 | 16,
    "C64": 5 << 8 | 64,
}


@cache
def _tools() -> tuple[Any, Any, Any]:
    """What makes DLPack of a buffer, a capsule of that, and a tensor of that."""
    import torch

    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return binding.library().cfac_buffer_dlpack, capsule, torch.from_dlpack


def bytes_of(address: int, length: int, buffer: int) -> torch.Tensor:
    """Memory of the library as a uint8 tensor, which takes over a reference to its buffer."""
    return _tensor(address, _BYTES, (length,), buffer)


def _tensor(address: int, kind: int, shape: tuple[int, ...], buffer: int) -> torch.Tensor:
    pack, capsule, tensor = _tools()
    sizes = struct.pack(f"={len(shape)}q", *shape)
    packed = pack(buffer, address, kind, len(shape), sizes)
    if not packed:
        binding.library().cfac_buffer_release(buffer)
        raise MemoryError("no memory for a tensor")
    made: torch.Tensor = tensor(capsule(packed, _NAME, None))
    return made


def shaped(wanted: Wanted, raw: torch.Tensor) -> torch.Tensor:
    """What is handed out, from the bytes that were read for it (a uint8 tensor).

    A view of ``raw`` if that holds nothing else, otherwise a copy, so that it keeps no more memory
    than it shows.
    """
    if (wanted.begin, wanted.length) != (wanted.read_begin, wanted.read_length):
        begin = wanted.begin - wanted.read_begin
        raw = raw[begin : begin + wanted.length].clone()
    tensor = raw.view(wanted.dtype()).view(wanted.rows())
    return tensor[wanted.index].clone() if wanted.index else tensor


def over(wanted: Wanted, address: int, length: int, buffer: int, release: Any) -> torch.Tensor:
    """The tensor of a delivered item; takes over its reference."""
    if not length:
        import torch

        release(buffer)
        return shaped(wanted, torch.empty(0, dtype=torch.uint8))
    kind = _TYPES.get(wanted.tensor.dtype)
    if kind is not None and wanted.exact:  # at once: a view is a tensor more, and keeps that alive
        return _tensor(address, kind, wanted.shape, buffer)
    return shaped(wanted, bytes_of(address, length, buffer))
