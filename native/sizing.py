"""How large a chunk should be: from file system, block device, memory for the ring, and model.

Used where a layout asks for ``auto``, and by ``cfac.load``.  Standard library only: the compiler
reports what it gives for a model, and the loader asks it again on the machine that loads.

What it goes by (research: disk rates hardly depend on the block size from 1 MiB up, so
each rule has another reason):

- start at the library's default of 8 MiB, which is also what the paper's authors use;
- a disk that seeks: 32 MiB, so that a seek of 10 ms costs less than the transfer
  (at 200 MB/s, 32 MiB take 160 ms). A virtio disk is not believed: it says that it
  rotates whatever the host keeps it on;
- whole multiples of what file system (statvfs ``f_bsize``, where it is larger than a
  page: a parallel file system's block) and device (``optimal_io_size``: a RAID's stripe)
  move at once;
- one such part for each of several ranks, which share a chunk;
- never more than the ring may hold: a quarter of the memory left, by the ring's buffers;
- a model should have some chunks for each buffer of the ring, else nothing overlaps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

KIB, MIB = 1024, 1024 * 1024
#: As CFAC_DEFAULT_CHUNK in cfac.h.
DEFAULT = 8 * MIB
SEEKING = 32 * MIB
LEAST = 256 * KIB
MOST = 64 * MIB
#: The ring may take this part of the memory that is left, as in buffer.c.
RING_PART = 4
#: The grid's alignment, as PAGE in internal.h.
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Storage:
    """What a file lies on.  Sizes in bytes; 0 where the system does not say."""

    kind: str = "unknown"
    block: int = 0
    optimal: int = 0
    rotational: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A chunk's size in bytes, and why."""

    size: int
    reasons: tuple[str, ...]


def show(size: int) -> str:
    """A size in binary units, as exact as it can be: ``8 MiB``."""
    for unit, name in ((1024 * MIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def storage(path: str, root: str = "") -> Storage:
    """What ``path`` lies on: statvfs(3), /proc/self/mountinfo (proc(5)), /sys/dev/block.

    ``root`` stands before /proc and /sys, for tests.
    """
    try:
        status, block = os.stat(path), os.statvfs(path).f_bsize
    except OSError:
        return Storage()
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    kind = "unknown"
    for line in _read(f"{root}/proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        if len(words) > 2 and words[2] == device and rest.split():
            kind = rest.split()[0]
    folder = f"{root}/sys/dev/block/{device}"
    queue = next(
        (q for q in (f"{folder}/queue", f"{folder}/../queue") if os.path.isdir(q)),
        f"{folder}/queue",
    )
    optimal = _read(f"{queue}/optimal_io_size")
    return Storage(
        kind,
        block,
        int(optimal) if optimal.isdigit() else 0,
        _read(f"{queue}/rotational") == "1" and "/virtio" not in os.path.realpath(queue),
    )


def slowest(places: Sequence[Storage]) -> Storage:
    """One storage that stands for several: what suits it suits all of them."""
    kinds = list(dict.fromkeys(place.kind for place in places))
    return Storage(
        ", ".join(kinds) or "unknown",
        max((place.block for place in places), default=0),
        max((place.optimal for place in places), default=0),
        any(place.rotational for place in places),
    )


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def choose(total: int, where: Storage, ring: int, memory: int, ranks: int = 1) -> Choice:
    """The chunk's size for ``total`` bytes of tensors, a ring of ``ring`` buffers,
    ``memory`` bytes left on the machine, and ``ranks`` that share each chunk.

    Always a multiple of 4096.
    """
    size, reasons = DEFAULT, [f"{where.kind}: {show(DEFAULT)}, the default"]
    if where.rotational:
        size, reasons = SEEKING, [f"{where.kind} on a disk that seeks: {show(SEEKING)}"]
    step = PAGE
    for unit, what in ((where.block, "file system's block"), (where.optimal, "device's stripe")):
        if unit > step and unit % step == 0 and unit <= MOST:
            step = unit
            reasons.append(f"a multiple of the {what} of {show(unit)}")
    size = _up(size, step)
    if ranks > 1:
        size *= ranks
        reasons.append(f"{ranks} ranks read a part each: {show(size)}")
    if size > MOST:
        size = max(MOST // step * step, step)
        reasons.append(f"at most {show(size)}")
    budget = memory // RING_PART
    least = max(_up(LEAST, step), step)
    size, bounded = _halve(size, step, least, lambda s: s * ring > budget)
    if bounded:
        reasons.append(
            f"{ring} buffers in a quarter of the {memory // MIB} MiB of memory left: {show(size)}"
        )
    size, bounded = _halve(size, step, least, lambda s: total < s * ring)
    if bounded:
        reasons.append(f"{total} bytes of tensors for a ring of {ring}: {show(size)}")
    return Choice(size, tuple(reasons))


def _halve(size: int, step: int, least: int, too_large: Callable[[int], bool]) -> tuple[int, bool]:
    """Half of ``size`` as often as it is too large, in whole steps, not below ``least``."""
    start = size
    while size > least and too_large(size):
        size = max(size // 2 // step * step, least)
    return size, size != start
