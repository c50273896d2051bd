"""The format's types as torch's."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING

from cfac.native import binding
from cfac.runtime.loading.model import TensorInfo

if TYPE_CHECKING:
    import torch

#: The word in headers -> torch's name; None: torch has no such type.
NAMES: dict[str, str | None] = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "F6_E2M3": None,
    "F6_E3M2": None,
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
_BITS = dict(
    zip(binding.DTYPES, (8, 4, 6, 6, *[8] * 7, *[16] * 4, *[32] * 3, *[64] * 4), strict=True)
)


class UnsupportedTensorError(ValueError):
    """A tensor that the file may hold but torch cannot; the message names tensor and type."""


def bits(dtype: str) -> int:
    """Bits of one element."""
    return _BITS[dtype]


def torch_dtype(tensor: TensorInfo) -> torch.dtype:
    """The type of a tensor; UnsupportedTensorError if this torch has none."""
    found = find_dtype(tensor.dtype)
    if found is None:
        import torch

        raise UnsupportedTensorError(
            f"{tensor.path}: tensor {tensor.name!r}: torch {torch.__version__} has no type for "
            f"{tensor.dtype}; leave the tensor out with names="
        )
    return found


@cache
def find_dtype(word: str) -> torch.dtype | None:
    """The type for a header's word, if this torch has one."""
    import torch

    name = NAMES[word]
    found = getattr(torch, name, None) if name else None
    return found if isinstance(found, torch.dtype) else None


def torch_shape(tensor: TensorInfo, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape in the elements of torch's type: two F4 are one element there."""
    if tensor.dtype != "F4":
        return shape
    if not shape or shape[-1] % 2:
        raise UnsupportedTensorError(
            f"{tensor.path}: tensor {tensor.name!r}: F4 of shape {list(shape)}: torch packs pairs "
            "along the last dimension, which must be even; leave the tensor out with names="
        )
    return (*shape[:-1], shape[-1] // 2)


def size(tensor: TensorInfo, shape: tuple[int, ...]) -> int:
    """Bytes that a part of a tensor takes."""
    return prod(shape) * bits(tensor.dtype) // 8
