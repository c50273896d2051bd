"""Which existing tensors data can be read straight into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cfac.runtime.loading.selection import Wanted

if TYPE_CHECKING:
    import torch


def sort_targets(
    wanted: Sequence[Wanted], tensors: Mapping[str, torch.Tensor], device: int
) -> dict[int, torch.Tensor]:
    """Those to read into, by the tensor's number; ValueError for shapes that do not fit.

    The others are to be copied into: those of another layout or type, and those that share memory,
    one after the other in file order, as if each were loaded alone. ``device`` is the CUDA device
    that data may be read to, or -1.
    """
    direct: dict[int, torch.Tensor] = {}
    copied: dict[int, torch.Tensor] = {}
    for item in wanted:
        target = tensors[item.tensor.name]
        where = f"{item.tensor.path}: tensor {item.tensor.name!r}"
        if target.device.type == "meta":
            raise ValueError(f"{where}: its target has no memory: it is on the device 'meta'")
        if tuple(target.shape) != item.final_shape():
            shape, given = list(item.final_shape()), list(target.shape)
            raise ValueError(f"{where} has shape {shape}, its target {given}")
        fits = item.exact and target.dtype == item.dtype() and _plain(target, device)
        (direct if fits else copied)[item.tensor.number] = target
    for number in _overlapping(direct, copied):
        del direct[number]
    return direct


def _plain(target: torch.Tensor, device: int) -> bool:
    """Whether its memory is its elements, in order, where reads can go."""
    import torch

    if target.layout is not torch.strided or not target.is_contiguous():
        return False
    if target.is_conj() or target.is_neg():
        return False
    on_device = target.device.type == "cuda" and target.device.index == device
    return bool(target.device.type == "cpu" or on_device)


def _overlapping(
    direct: Mapping[int, torch.Tensor], copied: Mapping[int, torch.Tensor]
) -> set[int]:
    """The numbers of those in ``direct`` that share memory with any other target."""
    spans = sorted(
        (*_extent(target), number)
        for targets in (direct, copied)
        for number, target in targets.items()
        if target.numel() > 0
    )
    shared: set[int] = set()
    reached, holder = (0, 0), -1
    for space, begin, end, number in spans:
        if (space, begin) < reached:
            shared |= {number, holder}
        if (space, end) > reached:
            reached, holder = (space, end), number
    return shared & set(direct)


def _extent(target: torch.Tensor) -> tuple[int, int, int]:
    """(address space, first byte, end) of what it reaches."""
    space = 0 if target.device.type == "cpu" else 1 + (target.device.index or 0)
    reach = sum((n - 1) * s for n, s in zip(target.shape, target.stride(), strict=True)) + 1
    begin = target.data_ptr()
    return space, begin, begin + reach * target.element_size()
