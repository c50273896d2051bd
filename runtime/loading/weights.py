"""A checkpoint's tensors in the order in which safetensors' own reader gives them.

An engine's stock loader opens one shard after the other, and ``safe_open(...).keys()`` are sorted
by name.  Files hold tensors in another order where their types differ (safetensors writes wide
types first).  Here they are read in file order, in large chunks across all shards; a tensor whose
turn has not come is held, at worst one shard's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from cfac.native.binding import HeaderError
from cfac.runtime.loading.loader import Loader, load
from cfac.runtime.loading.model import TensorInfo

if TYPE_CHECKING:
    import torch


def open_shards(
    files: Sequence[str], skip: Callable[[str], bool] | None = None, **options: Any
) -> list[Loader]:
    """Loaders of all ``files``, in their order; ``options`` are those of ``cfac.load``.

    One loader, unless a name is in two files: then one for each, as a stock loader hands out
    both.  All headers are checked here.  ``skip`` tells which tensors are not read.
    """
    names = None if skip is None else lambda name: not skip(name)
    try:
        return [load(files, names=names, **options)]
    except HeaderError as error:
        if error.code != "DUPLICATE_TENSOR" or len(files) == 1:
            raise
    return [load(file, names=names, **options) for file in files]


def in_stock_order(loader: Loader) -> Iterator[tuple[TensorInfo, torch.Tensor]]:
    """Every tensor of a loader: file after file, in each by name."""
    order = list(_stock_order(loader.tensors.values()))
    held: dict[str, torch.Tensor] = {}
    turn = 0
    for name, tensor in loader:
        held[name] = tensor
        del tensor  # what is handed out must be the consumer's alone
        while turn < len(order) and order[turn].name in held:
            info = order[turn]
            turn += 1
            yield info, held.pop(info.name)
    assert turn == len(order) and not held


def _stock_order(tensors: Iterable[TensorInfo]) -> Iterator[TensorInfo]:
    for _, group in groupby(tensors, lambda info: info.file):
        yield from sorted(group, key=lambda info: info.name)
