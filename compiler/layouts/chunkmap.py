"""The headers of a model and its chunk map, read and made by the C library.

``ChunkMap`` holds the paper's tensor.chunks and chunk.tensors, by way of the pieces
(tensor ∩ chunk), in the library's own arrays: 100,000 tensors in 83,000 chunks are 15 MB.
Tensors are numbered in file order, as the library's items are; pieces ascend through
tensors and through chunks, which `cfac_layout_check` proves in one pass.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_char_p, c_size_t, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from cfac.compiler.layouts.files import LayoutError, ModelFiles, model_files
from cfac.native import binding, sizing

#: O_DIRECT's usual alignment, and the chunk grid's.
PAGE = 4096
#: The most that one read(2) gives, in bytes.
READ_MOST = 0x7FFFF000
#: Characters of a tensor's name that are shown.
SHOWN = 120


class Rows(Sequence[tuple[int, ...]]):
    """The lists of a relation, each made when it is asked for."""

    def __init__(self, count: int, row: Callable[[int], tuple[int, ...]]) -> None:
        self._count = count
        self._row = row

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[int, ...]]: ...
    def __getitem__(self, at: int | slice) -> tuple[int, ...] | Sequence[tuple[int, ...]]:
        if isinstance(at, slice):
            return [self._row(k) for k in range(*at.indices(self._count))]
        if not 0 <= at < self._count:
            raise IndexError(at)
        return self._row(at)


class _Columns:
    """An array of C structures as columns; only those asked for."""

    def __init__(self, pointer: Any, count: int, structure: type[ctypes.Structure]) -> None:
        fields = {f[0]: getattr(structure, f[0]) for f in structure._fields_}
        self._size = ctypes.sizeof(structure)
        self._offsets = {name: (at.offset, "I" if at.size == 4 else "Q")
                         for name, at in fields.items()}  # fmt: skip
        self._raw = ctypes.string_at(pointer, count * self._size) if count else b""
        self._count = count

    def column(self, name: str) -> array[int]:
        """One field of all entries."""
        offset, kind = self._offsets[name]
        width = struct.calcsize(kind)
        pattern = struct.Struct(f"<{offset}x{kind}{self._size - offset - width}x")
        return array(kind, (value for (value,) in pattern.iter_unpack(self._raw)))


@dataclass(slots=True)
class Headers:
    """The headers of a model's files, checked; ``items`` are its tensors by native number."""

    files: ModelFiles
    sizes: tuple[int, ...]
    handle: Any
    count: int
    items: Any
    bytes: int
    _keep: Any = None

    def name(self, tensor: int) -> str:
        """The name of a tensor, by its native number."""
        found = binding.library().cfac_model_tensors(self.handle, byref(c_size_t()))[tensor]
        return ctypes.string_at(found.name, found.name_length).decode("utf-8", "backslashreplace")


@dataclass(slots=True)
class ChunkMap:
    """A model cut into chunks.  Offsets and lengths in bytes, offsets from the file's start."""

    headers: Headers
    chunk_size: int
    item_tensor: array[int]
    item_chunks: array[int]
    item_first_chunk: array[int]
    item_first_piece: array[int]
    item_length: array[int]
    piece_item: array[int]
    piece_chunk: array[int]
    piece_offset: array[int]
    piece_length: array[int]
    chunk_file: array[int]
    chunk_offset: array[int]
    chunk_length: array[int]
    chunk_first_piece: array[int]
    chunk_pieces: array[int]
    choice: sizing.Choice | None = None
    rows: dict[str, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def of_chunk(c: int) -> tuple[int, ...]:
            first = self.chunk_first_piece[c]
            return tuple(range(first, first + self.chunk_pieces[c]))

        def of_tensor(t: int) -> tuple[int, ...]:
            first = self.item_first_piece[t]
            return tuple(range(first, first + self.item_chunks[t]))

        def chunks(t: int) -> tuple[int, ...]:
            first = self.item_first_chunk[t]
            return tuple(range(first, first + self.item_chunks[t]))

        self.rows = {
            "chunk.pieces": Rows(self.chunks, of_chunk),
            "chunk.tensors": Rows(
                self.chunks, lambda c: tuple(self.piece_item[p] for p in of_chunk(c))
            ),
            "tensor.pieces": Rows(self.tensors, of_tensor),
            "tensor.chunks": Rows(self.tensors, chunks),
            "piece.chunk": Rows(self.pieces, lambda p: (self.piece_chunk[p],)),
        }

    @property
    def tensors(self) -> int:
        """How many tensors there are, empty ones included."""
        return len(self.item_tensor)

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return len(self.chunk_file)

    @property
    def pieces(self) -> int:
        """How many pieces there are."""
        return len(self.piece_item)

    def name(self, tensor: int) -> str:
        """The name of a tensor, by its place in file order."""
        return self.headers.name(self.item_tensor[tensor])

    def shown(self, tensor: int) -> str:
        """The name in quotes, as it can be shown: on one line, and not too long."""
        name = self.name(tensor)
        return repr(name if len(name) <= SHOWN else name[:SHOWN] + "…")

    def file(self, tensor: int) -> Path | None:
        """The file of a tensor; None for one without bytes."""
        if not self.item_chunks[tensor]:
            return None
        return self.headers.files.paths[self.chunk_file[self.item_first_chunk[tensor]]]

    def widest(self) -> tuple[int, int]:
        """The most chunks that a tensor spans, and the first such tensor; (0, 0) if none."""
        most = max(self.item_chunks, default=0)
        return (most, self.item_chunks.index(most)) if most else (0, 0)

    def extents(self) -> Iterator[tuple[int, int, int]]:
        """(file, offset, length) of each tensor that has bytes, in file order."""
        for t, count in enumerate(self.item_chunks):
            if count:
                first = self.item_first_piece[t]
                file = self.chunk_file[self.item_first_chunk[t]]
                yield file, self.piece_offset[first], self.item_length[t]


def _failure(result: int, error: binding.Error, paths: Sequence[Path]) -> LayoutError:
    """What the library reports, as a diagnostic; it names files by their absolute paths."""
    message = error.message.decode("utf-8", "replace")
    for path in paths:
        message = message.replace(str(path.absolute()), str(path))
    if error.code == binding.LAYOUT or error.code == binding.ARGUMENT:
        return LayoutError("CF623", message)
    return LayoutError("CF620", message or f"the C library failed ({result})")


def read_headers(path: str | Path) -> Headers:
    """Read the headers of the model at ``path``; LayoutError CF620 to CF622.

    Nothing but headers is read; no file stays open.
    """
    files = model_files(Path(path))
    try:
        library = binding.library()
    except binding.NativeMissingError as missing:
        raise LayoutError("CF620", f"{path}: no header can be read: {missing}") from missing
    names = [os.fsencode(p) for p in files.paths]
    handle, error = c_void_p(), binding.Error()
    flags = 1 if files.index is not None else 0  # CFAC_ALLOW_DUPLICATES: the index picks one
    result = library.cfac_model_open(
        (c_char_p * len(names))(*names), len(names), flags, byref(handle), byref(error)
    )
    if result < 0:
        raise _failure(result, error, files.paths)
    count = c_size_t()
    tensors = library.cfac_model_tensors(handle, byref(count))
    keep = _Handle(library.cfac_model_free, handle)
    try:
        sizes = tuple(p.stat().st_size for p in files.paths)
    except OSError as gone:
        raise LayoutError("CF620", f"{gone.filename}: {gone.strerror}") from gone
    headers = Headers(files, sizes, handle, count.value, None, 0, keep)
    chosen = range(count.value) if files.index is None else _listed(headers, tensors)
    headers.items = (binding.Item * max(len(chosen), 1))()
    for place, number in enumerate(chosen):
        length = tensors[number].end - tensors[number].begin
        headers.items[place].tensor, headers.items[place].length = number, length
        headers.bytes += length
    headers.count = len(chosen)
    return headers


class _Handle:
    """Frees a handle of the library when it is no longer referred to."""

    def __init__(self, free: Callable[[Any], None], handle: Any) -> None:
        self._finalizer = weakref.finalize(self, free, handle)


def _listed(headers: Headers, tensors: Any) -> list[int]:
    """The tensors that the index picks, and those that it does not speak of.

    LayoutError CF621 for one that is not in the file that the index names, and where
    two files have one of which the index does not speak.
    """
    wanted = dict(headers.files.weight_map)
    index, paths = headers.files.index, headers.files.paths
    found: list[int] = []
    others: dict[str, int] = {}
    seen: set[str] = set()
    for number in range(headers.count):
        name, file = headers.name(number), tensors[number].file
        if name in headers.files.weight_map:
            if headers.files.weight_map[name] == file:
                wanted.pop(name, None)
                found.append(number)
            seen.add(name)
        elif name in others:
            raise LayoutError(
                "CF621",
                f"{index}: tensor {name!r} is in {paths[others[name]].name} and in "
                f"{paths[file].name}, and the index does not say which to take",
            )
        else:
            others[name] = file
            found.append(number)
    if wanted:
        name, file = next(iter(wanted.items()))
        where = "it is in another file" if name in seen else "no listed file has it"
        more = f" (and {len(wanted) - 1} more like it)" if len(wanted) > 1 else ""
        raise LayoutError(
            "CF621", f"{index}: tensor {name!r} is not in {paths[file].name}: {where}{more}"
        )
    return found


def cut(headers: Headers, chunk_size: int | None, ring: int, ranks: int = 1) -> ChunkMap:
    """The chunk map for a chunk size in bytes; None chooses one for this machine.

    LayoutError CF623 for a size that is no multiple of 4096 or gives too many chunks.
    """
    library = binding.library()
    choice = None
    if chunk_size is None:
        paths = headers.files.paths
        where = sizing.storage(str(paths[0])) if paths else sizing.Storage()
        memory = int(library.cfac_memory_left(None))
        choice = sizing.choose(headers.bytes, where, ring, memory, ranks)
        chunk_size = choice.size
    plan, error = c_void_p(), binding.Error()
    options = binding.PlanOptions(chunk_size, 1, 0)
    result = library.cfac_plan_make(
        headers.handle, headers.items, headers.count, byref(options), byref(plan), byref(error)
    )
    if result < 0:
        raise _failure(result, error, headers.files.paths)
    keep = _Handle(library.cfac_plan_free, plan)
    parts: list[tuple[Any, int]] = []
    for function in ("items", "chunks", "pieces"):
        size = c_size_t()
        parts.append((getattr(library, f"cfac_plan_{function}")(plan, byref(size)), size.value))
    (items, n), (chunks, m), (pieces, k) = parts
    result = library.cfac_layout_check(items, n, chunks, m, pieces, k, byref(error))
    if result < 0:
        raise _failure(result, error, headers.files.paths)
    item = _Columns(items, n, binding.Item)
    piece = _Columns(pieces, k, binding.Piece)
    chunk = _Columns(chunks, m, binding.Chunk)
    del keep
    return ChunkMap(
        headers,
        chunk_size,
        item_tensor=item.column("tensor"),
        item_chunks=item.column("chunks"),
        item_first_chunk=item.column("first_chunk"),
        item_first_piece=item.column("first_piece"),
        item_length=item.column("length"),
        piece_item=piece.column("item"),
        piece_chunk=piece.column("chunk"),
        piece_offset=piece.column("offset"),
        piece_length=piece.column("length"),
        chunk_file=chunk.column("file"),
        chunk_offset=chunk.column("offset"),
        chunk_length=chunk.column("length"),
        chunk_first_piece=chunk.column("first_piece"),
        chunk_pieces=chunk.column("pieces"),
        choice=choice,
    )
