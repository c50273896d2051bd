"""A plan and its reading, as thin Python objects around the C library's (native/README.md).

Nothing here waits longer than POLL_MS in C, so that Python sees signals.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Generator, Iterator, Sequence
from ctypes import byref, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import Any, Final, NamedTuple

from cfac.native import binding
from cfac.runtime.loading.model import Model
from cfac.runtime.loading.selection import Wanted, Whole

POLL_MS: Final = 100
_ITEM = struct.Struct("<IIQQII")  # cfac_item
_CHUNK = struct.Struct("<QQQQQQIIII")  # cfac_chunk
_RESULT = struct.Struct("<IIQQQ")  # cfac_result
_TARGET = struct.Struct("<IIQQ")  # cfac_target
SIZE_OF_TARGET: Final = _TARGET.size
_PIECE = struct.Struct("<IIQQQ")  # cfac_piece
_ETIMEDOUT = -110
_BATCH: Final = 256  # results taken at a time

BACKENDS: Final = ("auto", "io_uring", "libaio", "pread", "cufile", "mapped")
VIEWS, CHECKSUM, EVENTS = 1, 2, 4
ITEMS, CHUNKS = 0, 1
DIRECT_AUTO, DIRECT_NEVER, DIRECT_ALWAYS = 0, 1, 2
PLACED, EMPTY = 4, 8
PATH_FLAGS: Final = {1: "direct", 2: "in place"}


class Chunk(NamedTuple):
    """cfac_chunk: offsets are of the file, in bytes."""

    origin: int
    offset: int
    length: int
    read_offset: int
    read_length: int
    segment: int
    file: int
    first_piece: int
    pieces: int
    reserved: int


class Piece(NamedTuple):
    """cfac_piece."""

    item: int
    chunk: int
    offset: int
    item_offset: int
    length: int


class Plan:
    """Which bytes are read in which chunks.  ``items[i]`` is what item ``i`` of the plan is."""

    def __init__(
        self, model: Model, wanted: Sequence[Wanted], chunk_size: int, ranks: int, rank: int
    ) -> None:
        self.library, self.paths = model.library, model.paths
        array = None
        if not (isinstance(wanted, Whole) and wanted.all):
            array = (binding.Item * max(1, len(wanted))).from_buffer_copy(_packed(wanted))
        options = binding.PlanOptions(chunk_size, ranks, rank)
        handle, error = c_void_p(), binding.Error()
        result = self.library.cfac_plan_make(
            model.handle, array, len(wanted), byref(options), byref(handle), byref(error)
        )
        binding.check(result, error)
        self.handle = handle
        weakref.finalize(self, self.library.cfac_plan_free, handle).atexit = False
        self._entries = self._array("items", _ITEM.size)
        self.items = wanted
        if not isinstance(wanted, Whole):  # those are in the plan's order, the model's
            by_number = {w.tensor.number: w for w in wanted}
            self.items = [by_number[number] for number, _ in self.reads()]
        self.chunk_size = chunk_size

    def span(self, item: int) -> tuple[int, int]:
        """An item's first chunk, and how many it lies in."""
        entry = _ITEM.unpack_from(self._entries, item * _ITEM.size)
        return entry[4], entry[1]

    def reads(self) -> Iterator[tuple[int, int]]:
        """Of each item the tensor's number, and the bytes that are read."""
        return ((row[0], row[3]) for row in _ITEM.iter_unpack(self._entries))

    def _array(self, what: str, size: int) -> bytes:
        count = c_size_t()
        pointer = getattr(self.library, f"cfac_plan_{what}")(self.handle, byref(count))
        return ctypes.string_at(pointer, count.value * size) if count.value else b""

    def chunks(self) -> list[Chunk]:
        """All chunks, in file order."""
        return [Chunk(*fields) for fields in _CHUNK.iter_unpack(self._array("chunks", _CHUNK.size))]

    def pieces(self) -> list[Piece]:
        """All pieces, in file order."""
        return [Piece(*fields) for fields in _PIECE.iter_unpack(self._array("pieces", _PIECE.size))]


def packed_target(item: int, on_device: bool, address: int, length: int) -> bytes:
    """A cfac_target: an item's destination of ``length`` bytes, on the CUDA device or the CPU."""
    return _TARGET.pack(item, on_device, address, length)


def _packed(wanted: Sequence[Wanted]) -> bytes:
    """As cfac_item."""
    if isinstance(wanted, Whole):
        lengths = wanted.column(wanted.model.lengths)
        rows = zip(wanted.numbers, repeat(0), repeat(0), lengths, repeat(0), repeat(0))
        return b"".join(starmap(_ITEM.pack, rows)).ljust(_ITEM.size, b"\0")
    packed = (_ITEM.pack(w.tensor.number, 0, w.read_begin, w.read_length, 0, 0) for w in wanted)
    return b"".join(packed).ljust(_ITEM.size, b"\0")


@dataclass(frozen=True, slots=True)
class Settings:
    """How to read: see ``cfac.load``."""

    backend: int = 0
    direct: int = DIRECT_AUTO
    ring: int = 0
    depth: int = 0
    threads: int = 0
    device: int = -1
    views: bool = False
    events: bool = False
    #: Address of a cfac_faults, for test builds of the library.
    faults: int = 0


class Job:
    """The reading of a plan.  Close it; no call may be under way then."""

    def __init__(
        self, plan: Plan, settings: Settings, *, delivery: int = ITEMS, checksum: bool = False
    ) -> None:
        self.library, self.plan, self.settings = plan.library, plan, settings
        flags = VIEWS * settings.views | CHECKSUM * checksum | EVENTS * settings.events
        options = binding.job_options(
            flags=flags,
            delivery=delivery,
            backend=settings.backend,
            direct=settings.direct,
            depth=settings.depth,
            threads=settings.threads,
            ring=settings.ring,
            device=settings.device,
            faults=settings.faults,
        )
        handle, self._error = c_void_p(), binding.Error()
        result = self.library.cfac_job_open(
            plan.handle, byref(options), byref(handle), byref(self._error)
        )
        binding.check(result, self._error)
        self.handle = handle
        self._finalizer = weakref.finalize(self, self.library.cfac_job_close, handle)
        self._finalizer.atexit = False
        self._result = binding.Result()

    def into(self, targets: bytes) -> None:
        """Give items' destinations, before the start: rows as of `packed_target`."""
        count = len(targets) // _TARGET.size
        result = self.library.cfac_job_into_many(self.handle, targets, count)
        binding.check(result, binding.Error(result, binding.ARGUMENT, 0, b"", b"no destination"))

    def start(self) -> None:
        """Begin to read."""
        binding.check(self.library.cfac_job_start(self.handle, byref(self._error)), self._error)

    def poll(self, timeout_ms: int = POLL_MS) -> binding.Result | bool | None:
        """The next item or chunk; None at the end; False if there is none yet."""
        result = self.library.cfac_job_next(
            self.handle, timeout_ms, byref(self._result), byref(self._error)
        )
        if result == _ETIMEDOUT:
            return False
        return self._result if binding.check(result, self._error) else None

    def next(self) -> binding.Result | None:
        """The next item or chunk, valid until the next call; None at the end.

        LoadError and OSError for a failed read.
        """
        while (result := self.poll()) is False:
            pass
        assert not isinstance(result, bool)
        return result

    def results(self) -> Generator[tuple[int, int, int, int, int], None, None]:
        """All items to the end, as cfac_result: (index, flags, address, bytes, buffer).

        The buffer's reference is the caller's.  Close the iterator to stop early.
        """
        array: Any = (binding.Result * _BATCH)()
        take, error = self.library.cfac_job_next_many, byref(self._error)
        owner = os.getpid()
        while True:
            count = take(self.handle, POLL_MS, array, _BATCH, error)
            if count == _ETIMEDOUT:
                continue
            if not binding.check(count, self._error):
                return
            batch = _RESULT.iter_unpack(ctypes.string_at(array, count * _RESULT.size))
            try:
                for result in batch:
                    if os.getpid() != owner:  # forked: the call says so
                        self.library.cfac_buffer_release(result[4])
                        binding.check(take(self.handle, 0, array, 1, error), self._error)
                    yield result
            finally:  # what was taken and got to nobody
                for _, _, _, _, buffer in batch:
                    self.library.cfac_buffer_release(buffer)

    def checksum(self, chunk: int) -> int:
        """CRC-32C of a chunk that is read."""
        crc = c_uint32()
        result = self.library.cfac_job_checksum(self.handle, chunk, byref(crc))
        error = binding.Error(result, binding.ARGUMENT, 0, b"", b"this path has no checksum")
        binding.check(result, error)
        return crc.value

    def path(self, chunk: int) -> str:
        """How a chunk that is read was read, such as ``"io_uring direct in place"``."""
        backend, flags = c_uint32(), c_uint32()
        result = self.library.cfac_job_path(self.handle, chunk, byref(backend), byref(flags))
        error = binding.Error(result, binding.ARGUMENT, 0, b"", b"this chunk was not read")
        binding.check(result, error)
        words = [BACKENDS[backend.value]]
        words += [word for bit, word in PATH_FLAGS.items() if flags.value & bit]
        return " ".join(words)

    def reason(self, backend: int) -> str:
        """Why a backend is not used; empty if it is, or was not asked for."""
        return str(self.library.cfac_job_reason(self.handle, backend).decode())

    def counters(self) -> dict[str, int]:
        """cfac_counters."""
        counters: Any = binding.Counters()
        size = ctypes.sizeof(counters)
        result = self.library.cfac_job_counters(self.handle, byref(counters), size)
        binding.check(result, binding.Error(result, binding.SYSTEM, 0, b"", b"no counters"))
        return {name: getattr(counters, name) for name, *_ in counters._fields_}

    def events(self) -> list[tuple[int, int, int]]:
        """(nanoseconds of the monotonic clock, cfac_event_kind, index), as recorded since."""
        found: list[tuple[int, int, int]] = []
        array = (binding.Event * 4096)()
        while (n := self.library.cfac_job_events(self.handle, array, len(array))) > 0:
            found += struct.iter_unpack("<QII", bytes(array)[: n * 16])
        return found

    def close(self) -> None:
        """End all threads and reads; twice is fine."""
        self._finalizer()
