"""Which existing tensors data can be read straight into."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Mapping, Sequence
from ctypes import c_uint32, c_void_p, create_string_buffer
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from cfac.native import binding
from cfac.runtime.loading.job import SIZE_OF_TARGET
from cfac.runtime.loading.selection import Wanted, Whole

if TYPE_CHECKING:
    import torch


class Targets(NamedTuple):
    """Where to read tensors to.

    ``tensors`` are by the number in the model.  ``packed``: if all that is wanted is read straight
    into its targets, these in its order as the C library takes them.
    """

    tensors: Mapping[int, torch.Tensor] = {}
    packed: bytes = b""


def sort_targets(
    wanted: Sequence[Wanted], tensors: Mapping[str, torch.Tensor], device: int
) -> Targets:
    """Those to read into, by the tensor's number; ValueError for shapes that do not fit.

    The others are to be copied into: those of another layout or type, and those that share memory,
    one after the other in file order, as if each were loaded alone. ``device`` is the CUDA device
    that data may be read to, or -1.
    """
    if isinstance(wanted, Whole) and (found := _all_at_once(wanted, tensors)):
        return found
    return Targets(_each(wanted, tensors, device))


def _all_at_once(wanted: Whole, tensors: Mapping[str, torch.Tensor]) -> Targets | None:
    """All of them, if the C library finds that all on the CPU can be read into; otherwise None.

    It asks what `_each` asks, at a fiftieth of the cost, by the functions in C that torch has for
    that since 2.10 (dmlc.github.io/dlpack, DLPackExchangeAPI).
    """
    import torch

    look, kind = _look(), torch.Tensor
    targets = [tensors[name] for name in wanted.column(wanted.model.names)]
    if look is None or not all(isinstance(target, kind) for target in targets):
        return None
    if any(map(kind.is_neg, targets)):
        return None
    if "C64" in wanted.model.types and any(map(kind.is_conj, targets)):
        return None
    count = len(targets)
    numbers = None if wanted.all else (c_uint32 * count)(*wanted.numbers)
    objects = (c_void_p * count).from_buffer(array("Q", map(id, targets)))
    packed = create_string_buffer(SIZE_OF_TARGET * count)
    find = binding.with_lock().cfac_model_targets
    try:
        fitting = find(wanted.model.handle, numbers, objects, count, look, packed)
    except (RuntimeError, BufferError):  # torch has no DLTensor of one: it is sparse, or elsewhere
        return None
    if fitting != count:
        return None
    return Targets(dict(zip(wanted.numbers, targets, strict=True)), packed.raw)


@cache
def _look() -> int | None:
    """The address of torch's function that fills a DLTensor; None if it has none that is known."""
    import torch

    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(capsule, b"dlpack_exchange_api")
    # a version of two uint32_t, an older table, three other functions, this one
    major, _, _, _, _, _, look = struct.unpack("=IIQQQQQ", ctypes.string_at(address, 48))
    return int(look) if major == 1 else None


def _each(
    wanted: Sequence[Wanted], tensors: Mapping[str, torch.Tensor], device: int
) -> dict[int, torch.Tensor]:
    import torch

    strided = torch.strided
    direct: dict[int, torch.Tensor] = {}
    spans: list[tuple[int, int, int, int]] = []
    for item in wanted:
        info = item.tensor
        target, number, shape = tensors[info.name], info.number, item.final_shape()
        place = target.device
        if place.type == "meta":
            raise ValueError(
                f"{info.path}: tensor {info.name!r}: its target has no memory: it is on the "
                "device 'meta'"
            )
        if target.shape != shape:
            raise ValueError(
                f"{info.path}: tensor {info.name!r} has shape {list(shape)}, its target "
                f"{list(target.shape)}"
            )
        cpu = place.type == "cpu"
        space = 0 if cpu else 1 + (place.index or 0)
        plain = target.layout is strided and target.is_contiguous()
        if (
            plain
            and (cpu or (place.type == "cuda" and place.index == device))
            and item.exact
            and target.dtype == item.dtype()
            and not (target.is_conj() or target.is_neg())
        ):
            begin, size = target.data_ptr(), item.length
            direct[number] = target
        else:
            begin, size = _extent(target)
        if size:
            spans.append((space, begin, begin + size, number))
    for number in _overlapping(spans):
        direct.pop(number, None)
    return direct


def _overlapping(spans: list[tuple[int, int, int, int]]) -> set[int]:
    """The numbers of those that share memory; of (address space, first byte, end, number)."""
    shared: set[int] = set()
    reached, holder = (0, 0), -1
    for space, begin, end, number in sorted(spans):
        if (space, begin) < reached:
            shared |= {number, holder}
        if (space, end) > reached:
            reached, holder = (space, end), number
    return shared


def _extent(target: torch.Tensor) -> tuple[int, int]:
    """(first byte, bytes) of what a tensor reaches."""
    if target.numel() == 0:
        return 0, 0
    reach = sum((n - 1) * s for n, s in zip(target.shape, target.stride(), strict=True)) + 1
    return target.data_ptr(), reach * target.element_size()
