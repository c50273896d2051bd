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
            direct[number] = target
            begin, size = target.data_ptr(), item.length
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
