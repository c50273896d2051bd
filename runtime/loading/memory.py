"""Tensors over memory of the C library.

A tensor's storage keeps a ctypes array alive, and that a counted reference to the buffer: the
memory is freed, or its ring buffer reused, when the last tensor over it is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cfac.native import binding
from cfac.runtime.loading.job import memory
from cfac.runtime.loading.selection import Wanted

if TYPE_CHECKING:
    import torch


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


def over(wanted: Wanted, result: binding.Result, release: Any) -> torch.Tensor:
    """The tensor of a delivered item; takes over its reference."""
    import torch

    if not result.length:
        release(result.buffer)
        return shaped(wanted, torch.empty(0, dtype=torch.uint8))
    array = memory(result.data, result.length, result.buffer, release)
    if wanted.exact:
        return torch.frombuffer(array, dtype=wanted.dtype()).view(wanted.rows())
    return shaped(wanted, torch.frombuffer(array, dtype=torch.uint8))
