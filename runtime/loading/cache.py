"""Checkpoints kept in memory (tmpfs), found by every loader on the machine (the paper's 6.3).

A cache is a folder, ``$CFAC_CACHE`` or ``/dev/shm/cfac-cache-UID``, of the user alone:

    KEY/manifest.json       what it is a copy of; there only once all files are
    KEY/0/NAME, KEY/1/NAME  the files
    KEY/doomed              evicted while in use: no new users; the last one removes it
    part-PID/               being written
    gone-KEY-PID/           being removed
    adding                  flock: who writes (one at a time)

An entry appears by one rename, so a partly written one is never seen.  Users hold a shared flock
on the manifest, which the kernel gives back however they end; who removes an entry needs the
exclusive one.  A file is found by its real path, and used only while its device, inode, size and
times are as they were when it was copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cfac.native import binding
from cfac.native.files import Files, Path, find
from cfac.runtime.loading.model import Model

#: Names the cache's folder.
VARIABLE: Final = "CFAC_CACHE"
MANIFEST, DOOMED, ADDING = "manifest.json", "doomed", "adding"
_STEP: Final = 64 << 20  # bytes copied between two looks at the memory that is left
#: What stays free at least: a share of what is left, or so many bytes.
_RESERVE_SHARE: Final = 20  # a twentieth
_RESERVE: Final = 256 << 20
_SHOWN: Final = 1e9


class CacheError(OSError):
    """The cache cannot do that; the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint in the cache.  ``stamps`` say what its sources were like."""

    key: str
    folder: str
    model: str
    sources: list[str]
    stamps: list[list[int]]
    paths: list[str]
    bytes: int
    doomed: bool = False

    def fresh(self) -> bool:
        """Whether all sources are still what was copied."""
        return all(_stamp(s) == t for s, t in zip(self.sources, self.stamps, strict=True))


class Hold:
    """Files of the cache in use: they stay until ``release``, or the end of the process.

    ``count`` of ``paths`` are of the cache, the others are as they were given.
    """

    def __init__(self, paths: list[str], held: dict[str, int], count: int = 0) -> None:
        self.paths, self.count = paths, count
        self._held = held
        self._pid = os.getpid()

    def release(self) -> None:
        """Let go; an entry that was evicted meanwhile is removed by its last user."""
        while self._held:
            folder, fd = self._held.popitem()
            try:
                if self._pid == os.getpid() and os.path.exists(os.path.join(folder, DOOMED)):
                    _remove_locked(folder, fd)
            finally:
                os.close(fd)


def default_root() -> str:
    """The folder of this user's cache."""
    return os.environ.get(VARIABLE) or f"/dev/shm/cfac-cache-{os.geteuid()}"  # noqa: S108


def hold(paths: Sequence[str], root: str | None = None) -> Hold | None:
    """Use the cache for those of ``paths`` that it has; None if it has none.  Never raises."""
    root = root or default_root()
    held: dict[str, int] = {}
    try:
        if not os.path.isdir(root) or not _private(root):
            return None
        found = dict(_where(entries(root)))
        used = [_lookup(path, found, held) for path in paths]
    except (OSError, ValueError, TypeError, KeyError):
        Hold([], held).release()
        return None
    if not held:
        return None
    chosen = [one or path for one, path in zip(used, paths, strict=True)]
    return Hold(chosen, held, sum(one is not None for one in used))


def entries(root: str) -> list[Entry]:
    """What is in a cache, the doomed included."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(root)):
            if "-" not in name and name != ADDING:
                entry = _read(root, name)
                found += [entry] if entry else []
    return found


def add(
    files: Path | Sequence[Path],
    budget: int,
    root: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Entry, bool]:
    """Copy a checkpoint into the cache; the entry, and whether it was copied now.

    ``budget`` bounds the bytes of all entries.  Who comes while another one adds waits for it.
    CacheError if it does not fit into the budget, the tmpfs, or the memory that is left, or if a
    file changes meanwhile; HeaderError and the like for files that cannot be loaded anyway.
    """
    root = root or default_root()
    made = find(files)
    Model(made)
    _make_root(root)
    with _adding(root):
        sweep(root, adding=True)
        sources = [os.path.realpath(path) for path in made.paths]
        stamps = [_stamp(source) for source in sources]
        key = _key(sources, stamps)
        present = _read(root, key)
        if present is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(present.folder, DOOMED))
            present = _read(root, key)
        if present is not None:
            return present, False
        for stale in entries(root):
            if set(stale.sources) & set(sources) and not stale.fresh():
                evict(stale)
        sizes = [stamp[2] for stamp in stamps]
        _check_room(root, sum(sizes), budget)
        given = [files] if isinstance(files, str | bytes | os.PathLike) else made.paths
        name = os.path.commonpath([os.path.abspath(os.fsdecode(path)) for path in given])
        part = os.path.join(root, f"part-{os.getpid()}")
        try:
            manifest = _copy_all(part, name, sources, stamps, progress)
            with open(os.path.join(part, MANIFEST), "w", encoding="utf-8") as file:
                json.dump(manifest, file)
            os.rename(part, os.path.join(root, key))
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        entry = _read(root, key)
        assert entry is not None
        return entry, True


def evict(entry: Entry) -> bool:
    """Remove an entry; False if it is in use: then its last user does, and nobody new finds it."""
    try:
        fd = os.open(os.path.join(entry.folder, MANIFEST), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if _remove_locked(entry.folder, fd):
            return True
        with contextlib.suppress(FileNotFoundError):
            os.close(os.open(os.path.join(entry.folder, DOOMED), os.O_CREAT | os.O_WRONLY, 0o600))
        return _remove_locked(entry.folder, fd)  # its last user may have just gone
    finally:
        os.close(fd)


def sweep(root: str, *, adding: bool = False) -> None:
    """Remove what was left behind: by killed adders, evictors and users.

    ``adding``: the caller holds the lock of those who add.
    """
    for entry in entries(root):
        if entry.doomed:
            evict(entry)
    if not os.path.isdir(root):
        return
    for name in os.listdir(root):
        if name.startswith("gone-"):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    if not adding:
        try:
            with _adding(root, wait=False):
                sweep(root, adding=True)
        except BlockingIOError:
            pass
        return
    for name in os.listdir(root):
        if name.startswith("part-"):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)


def default_budget(root: str | None = None) -> int:
    """Half of what would be free if the cache were empty, in bytes."""
    cached = sum(entry.bytes for entry in entries(root or default_root()))
    return (memory_left() + cached) // 2


def memory_left() -> int:
    """Bytes that cgroup and machine still allow."""
    return int(binding.library().cfac_memory_left(None))


def resolve(files: Files, root: str | None = None) -> tuple[Files, Hold | None]:
    """The same files, from the cache as far as it has them."""
    found = hold(files.paths, root)
    if found is None:
        return files, None
    return Files(found.paths, files.where, files.index_of), found


# -- inside ---------------------------------------------------------------------


def _stamp(path: str) -> list[int]:
    """What tells a file from another, or a later version of it; empty if it is gone."""
    try:
        s = os.stat(path)
    except OSError:
        return []
    return [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns]


def _key(sources: list[str], stamps: list[list[int]]) -> str:
    text = json.dumps([sources, stamps]).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:20]


def _private(root: str) -> bool:
    """Whether a folder is this user's alone: others must not be able to put files there."""
    s = os.lstat(root)
    return stat.S_ISDIR(s.st_mode) and s.st_uid == os.geteuid() and not s.st_mode & 0o077


def _make_root(root: str) -> None:
    os.makedirs(os.path.dirname(root) or ".", exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(root, 0o700)
    if not _private(root):
        raise CacheError(1, "it is no folder of this user alone (mode 0700): not used", root)


def _read(root: str, key: str) -> Entry | None:
    """An entry; None if there is none, or no longer."""
    folder = os.path.join(root, key)
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            data: dict[str, Any] = json.load(file)
        doomed = os.path.exists(os.path.join(folder, DOOMED))
    except (OSError, ValueError):
        return None
    paths = [os.path.join(folder, path) for path in data["paths"]]
    sizes = sum(stamp[2] for stamp in data["stamps"])
    rest = (data["model"], data["sources"], data["stamps"], paths, sizes, doomed)
    return Entry(key, folder, *rest)


def _where(found: list[Entry]) -> Iterator[tuple[str, tuple[Entry, int]]]:
    for entry in found:
        if not entry.doomed:
            for number, source in enumerate(entry.sources):
                if _stamp(source) == entry.stamps[number]:
                    yield source, (entry, number)


def _lookup(path: str, found: dict[str, tuple[Entry, int]], held: dict[str, int]) -> str | None:
    """The cached copy of a file, its entry being held from now on; None without one."""
    match = found.get(os.path.realpath(path))
    if match is None:
        return None
    entry, number = match
    if entry.folder not in held:
        try:
            fd = os.open(os.path.join(entry.folder, MANIFEST), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            usable = os.fstat(fd).st_nlink > 0 and not os.path.exists(
                os.path.join(entry.folder, DOOMED)
            )
        except OSError:  # it is being removed
            usable = False
        if not usable:
            os.close(fd)
            return None
        held[entry.folder] = fd
    return entry.paths[number]


def _remove_locked(folder: str, manifest: int) -> bool:
    """Remove an entry if nobody else uses it, by the descriptor of its manifest."""
    try:
        fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if os.fstat(manifest).st_nlink == 0:
        return True  # somebody else did
    gone = os.path.join(os.path.dirname(folder), f"gone-{os.path.basename(folder)}-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)
    return True


@contextlib.contextmanager
def _adding(root: str, wait: bool = True) -> Iterator[None]:
    """Be the one that adds; BlockingIOError without ``wait`` if another one does."""
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
    fd = os.open(os.path.join(root, ADDING), flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(fd)


def _check_room(root: str, size: int, budget: int) -> None:
    """CacheError unless ``size`` more bytes fit everywhere."""
    cached = sum(entry.bytes for entry in entries(root))
    need = f"{size / _SHOWN:.3f} GB"
    if cached + size > budget:
        raise CacheError(
            28, f"{need} do not fit beside {cached / _SHOWN:.3f} GB into the budget of "
            f"{budget / _SHOWN:.3f} GB: evict something, or give a larger budget", root
        )  # fmt: skip
    room = os.statvfs(root)
    free = room.f_bavail * room.f_frsize
    left = memory_left()
    left -= max(left // _RESERVE_SHARE, _RESERVE)
    for have, what in ((free, "are free on its file system"), (left, "of memory can be spared")):
        if size > have:
            have = max(have, 0)
            raise CacheError(28, f"{need} are wanted, {have / _SHOWN:.3f} GB {what}", root)


def _copy_all(
    part: str,
    model: str,
    sources: list[str],
    stamps: list[list[int]],
    progress: Callable[[int, int], None] | None,
) -> dict[str, Any]:
    """Copy files into ``part``; the entry's manifest."""
    os.mkdir(part, 0o700)
    total, done, paths = sum(stamp[2] for stamp in stamps), 0, []
    for number, (source, stamp) in enumerate(zip(sources, stamps, strict=True)):
        path = os.path.join(str(number), os.path.basename(source))
        os.mkdir(os.path.join(part, str(number)), 0o700)
        for copied in _copy(source, os.path.join(part, path), stamp[2]):
            done += copied
            if progress is not None:
                progress(done, total)
        if _stamp(source) != stamp:
            raise CacheError(11, "it changed while it was copied", source)
        paths.append(path)
    return {"model": model, "sources": sources, "stamps": stamps, "paths": paths}


def _copy(source: str, target: str, size: int) -> Iterator[int]:
    """Copy a file's bytes into memory that is reserved first; yields how many, step by step."""
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        try:
            done = 0
            while done < size:
                step = min(_STEP, size - done)
                if memory_left() < step + _RESERVE // 2:
                    raise CacheError(12, "memory became short while it was copied", source)
                os.posix_fallocate(writing, done, step)
                end = done + step
                while done < end:
                    copied = os.sendfile(writing, reading, done, end - done)
                    if copied == 0:
                        raise CacheError(11, "it was cut short while it was copied", source)
                    done += copied
                    yield copied
        finally:
            os.close(writing)
    finally:
        os.close(reading)
