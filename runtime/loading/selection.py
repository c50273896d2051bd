"""What of a model is wanted: names and slices, as ranges of bytes.

A slice of the first dimension reads only its rows.  Slices of other dimensions read the rows whole
and copy the wanted columns out of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, TypeVar

from cfac.runtime.loading.dtypes import bits, find_dtype, torch_dtype, torch_shape
from cfac.runtime.loading.model import Model, TensorInfo

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
#: Which tensors: a glob, a regular expression (searched), a function of the name, or names.
Names = str | re.Pattern[str] | Callable[[str], bool] | Collection[str]
Slice = slice | tuple[slice, ...]
#: Which part of them: by name, or a function that gives a slice, or None for the whole.
Slices = Mapping[str, Slice] | Callable[[TensorInfo], Slice | None]


@dataclass(slots=True)  # not frozen: those take four times as long to make
class Wanted:
    """A tensor, or a part of one.

    Bytes ``begin`` to ``begin + length`` of the tensor are wanted; they are rows of ``shape``
    elements, of which ``index`` (empty: all) is cut.  ``read_begin`` and ``read_length`` are what
    is read for that, more where checksums need whole chunks.  ``hidden``: read only for these.
    """

    tensor: TensorInfo
    begin: int
    length: int
    shape: tuple[int, ...]
    index: tuple[slice, ...] = ()
    read_begin: int = 0
    read_length: int = 0
    hidden: bool = False

    @property
    def exact(self) -> bool:
        """Whether the bytes read are the tensor to hand out."""
        return not self.index and (self.begin, self.length) == (self.read_begin, self.read_length)

    def dtype(self) -> torch.dtype:
        """The type in torch; UnsupportedTensorError."""
        return torch_dtype(self.tensor)

    def rows(self) -> tuple[int, ...]:
        """The shape in torch's elements, before ``index``; UnsupportedTensorError."""
        return torch_shape(self.tensor, self.shape)

    def final_shape(self) -> tuple[int, ...]:
        """The shape in torch's elements of what is handed out."""
        rows = self.rows()
        if not self.index:
            return rows
        cut = [len(range(n)[s]) for n, s in zip(rows, self.index, strict=False)]
        return (*cut, *rows[len(cut) :])


class Whole(Sequence[Wanted]):
    """Tensors of a model, whole, in file order; each is made when it is asked for.

    So reading can begin before thousands of objects are made, and few of them live at a time.
    """

    def __init__(self, model: Model, numbers: Sequence[int] | None = None) -> None:
        """``numbers``: which, ascending; all by default."""
        self.model = model
        #: Whether these are all tensors of the model.
        self.all = numbers is None
        self.numbers = range(len(model)) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Wanted:  # type: ignore[override]  # no slices
        return whole(self.model.info(self.numbers[index]))

    def __iter__(self) -> Iterator[Wanted]:
        return map(whole, self.model.all() if self.all else map(self.model.info, self.numbers))

    def column(self, values: list[T]) -> list[T]:
        """What a list of something of each tensor of the model says of these."""
        return values if self.all else [values[number] for number in self.numbers]


def nbytes(wanted: Sequence[Wanted]) -> int:
    """Bytes of what is wanted."""
    if isinstance(wanted, Whole):
        return sum(wanted.column(wanted.model.lengths))
    return sum(w.length for w in wanted)


def check_types(wanted: Sequence[Wanted]) -> None:
    """UnsupportedTensorError for the first one that torch cannot hold."""
    if isinstance(wanted, Whole):
        words = set(wanted.column(wanted.model.types))
        if "F4" not in words and None not in map(find_dtype, words):  # F4's shapes matter, too
            return
    for item in wanted:
        item.dtype(), item.rows()


def choose(tensors: Mapping[str, TensorInfo], names: Names | None) -> dict[str, TensorInfo]:
    """The tensors that ``names`` means, in file order; KeyError for a name that is not there."""
    if names is None:
        return dict(tensors)
    if isinstance(names, str):
        pattern = names
        return {n: t for n, t in tensors.items() if fnmatchcase(n, pattern)}
    if isinstance(names, re.Pattern):
        searched = names
        return {n: t for n, t in tensors.items() if searched.search(n)}
    if callable(names):
        return {n: t for n, t in tensors.items() if names(n)}
    wanted = set(names)
    for name in wanted:
        lookup(tensors, name)
    return {n: t for n, t in tensors.items() if n in wanted}


def lookup(tensors: Mapping[str, TensorInfo], name: str) -> TensorInfo:
    """A tensor by its name; KeyError with the nearest names."""
    if name in tensors:
        return tensors[name]
    near = get_close_matches(str(name), tensors, 3) if len(tensors) < 20_000 else []
    hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
    raise KeyError(f"no tensor {name!r}{hint}")


def want(tensors: Mapping[str, TensorInfo], slices: Slices | None) -> list[Wanted]:
    """What to read of each tensor.  KeyError, ValueError for a slice that does not fit."""
    if slices is None:
        return [whole(tensor) for tensor in tensors.values()]
    if callable(slices):
        return [part(tensor, slices(tensor)) for tensor in tensors.values()]
    for name in slices:
        lookup(tensors, name)
    return [part(tensor, slices.get(name)) for name, tensor in tensors.items()]


def whole(tensor: TensorInfo) -> Wanted:
    """All of a tensor."""
    size = tensor.end - tensor.begin
    return Wanted(tensor, 0, size, tensor.shape, (), 0, size)


def part(tensor: TensorInfo, cut: Slice | None) -> Wanted:
    """Some of a tensor; ValueError if the slice does not fit."""
    if cut is None:
        return whole(tensor)
    cuts = (cut,) if isinstance(cut, slice) else tuple(cut)
    where = f"{tensor.path}: tensor {tensor.name!r} of shape {list(tensor.shape)}"
    if len(cuts) > len(tensor.shape):
        raise ValueError(f"{where}: {len(cuts)} slices")
    index: list[slice] = []
    for size, one in zip(tensor.shape, cuts, strict=False):
        if not isinstance(one, slice):
            raise ValueError(f"{where}: {one!r} is no slice")
        start, stop, step = one.indices(size)
        if step < 1:
            raise ValueError(f"{where}: slices go forwards, not by {step}")
        index.append(slice(start, max(start, stop), step))
    if tensor.dtype == "F4" and len(index) == len(tensor.shape):
        last = index[-1]
        if last.step != 1 or last.start % 2 or last.stop % 2:
            raise ValueError(f"{where}: two F4 share a byte: slice the last dimension evenly")
        index[-1] = slice(last.start // 2, last.stop // 2, 1)
    if not index:
        return whole(tensor)
    first = index[0]
    packed = 2 if tensor.dtype == "F4" and len(tensor.shape) == 1 else 1
    rows = range(first.start, first.stop, first.step)
    begin, end = (rows[0], rows[-1] + 1) if rows else (0, 0)
    row_bits = prod(tensor.shape[1:]) * bits(tensor.dtype) * packed
    offset, length = begin * row_bits // 8, (end - begin) * row_bits // 8
    shape = ((end - begin) * packed, *tensor.shape[1:])
    index[0] = slice(0, end - begin, first.step)
    torch_sizes = torch_shape(tensor, shape)
    trivial = all(
        s.start == 0 and s.stop == n and s.step == 1
        for n, s in zip(torch_sizes, index, strict=False)
    )
    return Wanted(tensor, offset, length, shape, () if trivial else tuple(index), offset, length)


def fill_chunks(
    wanted: Iterable[Wanted], every: Iterable[TensorInfo], starts: Mapping[int, int], step: int
) -> list[Wanted]:
    """Read all of every chunk that is read in part, so that its checksum can be told.

    ``starts`` gives the file offset of each file's first chunk, ``step`` their size.  What is
    added is hidden, or a longer read of something wanted.
    """
    by_number = {w.tensor.number: w for w in wanted}

    def cells(tensor: TensorInfo, begin: int, length: int) -> range:
        at = tensor.begin + begin - starts[tensor.file]
        return range(at // step, -(-(at + length) // step)) if length else range(0)

    touched = {
        (w.tensor.file, cell)
        for w in by_number.values()
        for cell in cells(w.tensor, w.begin, w.length)
    }
    filled = []
    for tensor in every:
        asked = by_number.get(tensor.number)
        hit = [c for c in cells(tensor, 0, tensor.nbytes) if (tensor.file, c) in touched]
        if not hit:
            filled += [asked] if asked else []
            continue
        base = starts[tensor.file]
        begin = max(tensor.begin, base + hit[0] * step)
        end = min(tensor.end, base + (hit[-1] + 1) * step)
        entry = asked or replace(whole(tensor), hidden=True)
        filled.append(replace(entry, read_begin=begin - tensor.begin, read_length=end - begin))
    return filled
