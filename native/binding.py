"""A thin ctypes binding of the C chunk library (native/cfac.h): prototypes and typed errors.

ctypes, not an extension module, so that one build serves every Python version; its calls release
the interpreter lock. Whoever holds a pointer frees it: README.md says what keeps what alive.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path
from typing import Final

ABI: Final = 4
NAME: Final = "libcfac.so"
#: Names another build of the library, for instance one with a sanitizer.
VARIABLE: Final = "CFAC_NATIVE_LIBRARY"
NO_OFFSET: Final = 2**64 - 1

# enum cfac_code: what is not about the bytes of a header
SYSTEM, ARGUMENT, NO_MEMORY, NOT_REGULAR = 1, 2, 3, 4
FIRST_OF_HEADER, DUPLICATE_TENSOR, LAYOUT = 5, 26, 27

#: enum cfac_dtype, in its order.
DTYPES: Final = (
    *("BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"),
    *("F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "I32", "U32", "F32"),
    *("C64", "F64", "I64", "U64"),
)


class NativeMissingError(ImportError):
    """The C library was not built, or is another version's."""


class HeaderError(ValueError):
    """A file that is no valid safetensors file; the message names file, tensor and byte."""

    def __init__(self, message: str, code: str, tensor: str, offset: int | None) -> None:
        super().__init__(message)
        self.code = code
        self.tensor = tensor
        self.offset = offset


class LoadError(OSError):
    """Reading failed. `errno` and `code` say how; the message names file, tensor and byte."""

    code: str


class Error(Structure):
    """cfac_error."""

    _fields_ = [
        ("error", c_int32),
        ("code", c_int32),
        ("offset", c_uint64),
        ("tensor", c_char * 256),
        ("message", c_char * 768),
    ]


class Tensor(Structure):
    """cfac_tensor."""

    _fields_ = [
        ("name", c_void_p),
        ("shape", POINTER(c_uint64)),
        ("name_length", c_uint64),
        ("begin", c_uint64),
        ("end", c_uint64),
        ("ndim", c_uint32),
        ("dtype", c_uint32),
        ("file", c_uint32),
        ("reserved", c_uint32),
    ]


class Pair(Structure):
    """cfac_pair: an entry of a file's metadata."""

    _fields_ = [
        ("key", c_void_p),
        ("value", c_void_p),
        ("key_length", c_uint64),
        ("value_length", c_uint64),
    ]


class Item(Structure):
    """cfac_item: a tensor, or some bytes of one."""

    _fields_ = [
        ("tensor", c_uint32),
        ("chunks", c_uint32),
        ("begin", c_uint64),
        ("length", c_uint64),
        ("first_chunk", c_uint32),
        ("first_piece", c_uint32),
    ]


class Piece(Structure):
    """cfac_piece: item ∩ chunk."""

    _fields_ = [
        ("item", c_uint32),
        ("chunk", c_uint32),
        ("offset", c_uint64),
        ("item_offset", c_uint64),
        ("length", c_uint64),
    ]


class Chunk(Structure):
    """cfac_chunk."""

    _fields_ = [
        ("origin", c_uint64),
        ("offset", c_uint64),
        ("length", c_uint64),
        ("read_offset", c_uint64),
        ("read_length", c_uint64),
        ("segment", c_uint64),
        ("file", c_uint32),
        ("first_piece", c_uint32),
        ("pieces", c_uint32),
        ("reserved", c_uint32),
    ]


class PlanOptions(Structure):
    """cfac_plan_options."""

    _fields_ = [("chunk_size", c_uint64), ("ranks", c_uint32), ("rank", c_uint32)]


class JobOptions(Structure):
    """cfac_job_options. Made by `job_options`, which fills in size and device."""

    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("delivery", c_uint32),
        ("backend", c_uint32),
        ("direct", c_uint32),
        ("depth", c_uint32),
        ("threads", c_uint32),
        ("ring", c_uint32),
        ("device", c_int32),
        ("reserved", c_uint32),
        ("cuda_library", c_char_p),
        ("cufile_library", c_char_p),
        ("faults", c_void_p),
    ]


class Result(Structure):
    """cfac_result: an item or a chunk, and whose memory it is."""

    _fields_ = [
        ("index", c_uint32),
        ("flags", c_uint32),
        ("data", c_void_p),
        ("length", c_uint64),
        ("buffer", c_void_p),
    ]


_COUNTERS: Final = (
    *("bytes", "requests", "direct_bytes", "buffered_bytes", "mapped_bytes", "device_bytes"),
    *("in_place_bytes", "copied_bytes", "short_reads", "retries", "views", "owned", "placed"),
    *("ring_waits", "consumer_waits", "buffers_peak", "threads", "depth", "ring", "backend"),
)


class Counters(Structure):
    """cfac_counters."""

    _fields_ = [(name, c_uint64) for name in _COUNTERS]


class Event(Structure):
    """cfac_event: a time stamp of CLOCK_MONOTONIC, in nanoseconds."""

    _fields_ = [("ns", c_uint64), ("kind", c_uint32), ("index", c_uint32)]


def job_options(**values: int | bytes) -> JobOptions:
    """Options with their size, and no device unless one is given."""
    return JobOptions(**{"device": -1, "size": ctypes.sizeof(JobOptions)} | values)


_SIZE = POINTER(c_size_t)
_ERROR = POINTER(Error)
#: name: (result, arguments), as in cfac.h; an opaque handle is a void pointer.
PROTOTYPES: Final = {
    "cfac_abi": (c_uint32, []),
    "cfac_code_name": (c_char_p, [c_int32]),
    "cfac_dtype_name": (c_char_p, [c_uint32]),
    "cfac_dtype_bits": (c_uint32, [c_uint32]),
    "cfac_header_parse": (
        c_int,
        [c_char_p, c_size_t, c_uint64, c_char_p, POINTER(c_void_p), _ERROR],
    ),
    "cfac_header_free": (None, [c_void_p]),
    "cfac_header_tensors": (POINTER(Tensor), [c_void_p, _SIZE]),
    "cfac_header_metadata": (POINTER(Pair), [c_void_p, _SIZE]),
    "cfac_model_open": (
        c_int,
        [POINTER(c_char_p), c_size_t, c_uint32, POINTER(c_void_p), _ERROR],
    ),
    "cfac_model_free": (None, [c_void_p]),
    "cfac_model_tensors": (POINTER(Tensor), [c_void_p, _SIZE]),
    "cfac_model_find": (c_int64, [c_void_p, c_char_p, c_size_t]),
    "cfac_model_files": (c_size_t, [c_void_p]),
    "cfac_model_path": (c_char_p, [c_void_p, c_size_t]),
    "cfac_model_metadata": (POINTER(Pair), [c_void_p, c_size_t, _SIZE]),
    "cfac_model_targets": (
        c_int64,
        [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p],
    ),
    "cfac_model_read": (c_int, [c_void_p, c_uint32, c_uint64, c_uint64, c_void_p, _ERROR]),
    "cfac_plan_make": (
        c_int,
        [
            c_void_p,
            POINTER(Item),
            c_size_t,
            POINTER(PlanOptions),
            POINTER(c_void_p),
            _ERROR,
        ],
    ),
    "cfac_plan_free": (None, [c_void_p]),
    "cfac_plan_items": (POINTER(Item), [c_void_p, _SIZE]),
    "cfac_plan_chunks": (POINTER(Chunk), [c_void_p, _SIZE]),
    "cfac_plan_pieces": (POINTER(Piece), [c_void_p, _SIZE]),
    "cfac_plan_buffer_size": (c_uint64, [c_void_p]),
    "cfac_layout_check": (
        c_int,
        [POINTER(Item), c_size_t, POINTER(Chunk), c_size_t, POINTER(Piece), c_size_t, _ERROR],
    ),
    "cfac_job_open": (c_int, [c_void_p, POINTER(JobOptions), POINTER(c_void_p), _ERROR]),
    "cfac_job_into": (c_int, [c_void_p, c_uint32, c_void_p, c_uint64, c_int]),
    "cfac_job_into_many": (c_int, [c_void_p, c_char_p, c_size_t]),
    "cfac_job_start": (c_int, [c_void_p, _ERROR]),
    "cfac_job_next": (c_int, [c_void_p, c_int, POINTER(Result), _ERROR]),
    "cfac_job_next_many": (c_int, [c_void_p, c_int, POINTER(Result), c_size_t, _ERROR]),
    "cfac_job_place": (c_int, [c_void_p, c_uint32, c_void_p, _ERROR]),
    "cfac_job_wait": (c_int, [c_void_p, c_int, _ERROR]),
    "cfac_job_cancel": (None, [c_void_p]),
    "cfac_job_close": (None, [c_void_p]),
    "cfac_buffer_retain": (None, [c_void_p]),
    "cfac_buffer_release": (None, [c_void_p]),
    "cfac_buffer_dlpack": (c_void_p, [c_void_p, c_void_p, c_uint32, c_uint32, c_char_p]),
    "cfac_job_counters": (c_int, [c_void_p, POINTER(Counters), c_size_t]),
    "cfac_job_reason": (c_char_p, [c_void_p, c_uint32]),
    "cfac_job_checksum": (c_int, [c_void_p, c_uint32, POINTER(c_uint32)]),
    "cfac_job_path": (c_int, [c_void_p, c_uint32, POINTER(c_uint32), POINTER(c_uint32)]),
    "cfac_job_events": (c_int64, [c_void_p, POINTER(Event), c_size_t]),
    "cfac_crc32c": (c_uint32, [c_uint32, c_char_p, c_size_t]),
    "cfac_cores": (c_uint32, []),
    "cfac_memory_left": (c_uint64, [c_char_p]),
}


def candidates() -> list[Path]:
    """Where the library may be: as told, beside this package, in a checkout's build folder."""
    told = os.environ.get(VARIABLE)
    if told:
        return [Path(told)]
    from cfac import native

    beside = [Path(folder) / NAME for folder in native.__path__]
    return [*beside, Path(__file__).resolve().parents[1] / "build" / "native" / NAME]


@cache
def with_lock() -> ctypes.PyDLL:
    """The same library for calls that keep the interpreter's lock, as they call Python back.

    What Python's own functions raise there is raised here.
    """
    name = "cfac_model_targets"
    loaded = ctypes.PyDLL(library()._name)
    function = getattr(loaded, name)
    function.restype, function.argtypes = PROTOTYPES[name]
    return loaded


@cache
def library() -> ctypes.CDLL:
    """The library, with its prototypes; NativeMissingError if there is none that fits."""
    tried = candidates()
    found = next((path for path in tried if path.is_file()), None)
    if found is None:
        listed = "\n  ".join(str(path) for path in tried)
        raise NativeMissingError(
            "cfac's C library is missing: it was not built, for want of a C compiler or CMake, or "
            f"because this is not Linux. Install cfac again where they are. Looked for:\n  {listed}"
        )
    try:
        loaded = ctypes.CDLL(str(found))
        if (version := loaded.cfac_abi()) != ABI:  # first: others lack functions
            raise NativeMissingError(
                f"{found} is of version {version} of the interface, not {ABI}: install cfac again"
            )
        for name, (result, arguments) in PROTOTYPES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NativeMissingError(f"cfac's C library cannot be used: {error}") from error
    return loaded


def check(result: int, error: Error) -> int:
    """Give a call's result back, or raise what it reports.

    HeaderError (a ValueError) for what is wrong with a file's bytes, LoadError (an OSError; Python
    picks FileNotFoundError and the like for plain system errors) for the file system and devices,
    ValueError for a caller's mistake, MemoryError.
    """
    if result >= 0:
        return result
    message = error.message.decode("utf-8", "replace")
    code, number = error.code, -result
    if code == NO_MEMORY:
        raise MemoryError(message)
    if code in (ARGUMENT, LAYOUT):
        raise ValueError(message)
    if code in (SYSTEM, NOT_REGULAR):
        raise OSError(number, message)
    name = library().cfac_code_name(code).decode()
    if FIRST_OF_HEADER <= code <= DUPLICATE_TENSOR:
        offset = None if error.offset == NO_OFFSET else error.offset
        raise HeaderError(message, name, error.tensor.decode("utf-8", "replace"), offset)
    failure = LoadError(number, message)
    failure.code = name
    raise failure
