"""Put a cfac patch onto a tree and take it out again, all or nothing.

Every file is checked against the patch's hashes before anything is written.  Each is
replaced atomically, so a killed run leaves every file as it was or as it will be,
and running again finishes the work.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from cfac.codegen.patch import sha256

_INPUT = re.compile(r"^cfac-input: (\S+) (-|[0-9a-f]{64}) ([0-9a-f]{64})$", re.M)
_HUNK = re.compile(rb"^@@ -(\d+),(\d+) \+(\d+),(\d+) @@")
_TEMP = ".cfac-tmp"


class PatchError(Exception):
    """A patch that cannot be read, or that a tree does not fit.  Nothing was written."""

    def __init__(self, code: str, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.help = help


@dataclass(slots=True)
class FilePatch:
    """One file of a patch: hashes on both sides (None: the file is added) and hunks."""

    path: str
    before: str | None
    after: str
    hunks: list[tuple[int, list[bytes], int, list[bytes]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch as ``cfac compile`` writes it."""

    name: str
    package: str
    version: str
    files: tuple[FilePatch, ...]


def parse_patch(data: bytes) -> Patch:
    """Read a patch; PatchError(CF415) if it is not one of cfac's or is not safe."""
    head, mark, rest = data.partition(b"\n---\n")
    text = head.decode("utf-8", "replace").replace("\r\n", "\n")
    name = re.search(r"^cfac-spec: (\S+) ", text, re.M)
    engine = re.search(r"^cfac-engine: (\S+) (\S+)$", text, re.M)
    if not mark or name is None or engine is None:
        raise PatchError("CF415", "not a patch that cfac compile wrote (its header is missing)")
    files: dict[str, FilePatch] = {}
    for path, before, after in _INPUT.findall(text):
        _check_path(path, engine[1])
        files[path] = FilePatch(path, None if before == "-" else before, after)
    _read_hunks(rest, files)
    return Patch(name[1], engine[1], engine[2], tuple(files.values()))


def _check_path(path: str, package: str) -> None:
    parts = path.split("/")
    bad = path.startswith("/") or "\\" in path or any(part in ("", ".", "..") for part in parts)
    if bad or parts[0] != package:
        raise PatchError("CF415", f"the patch names a path outside of the engine: {path!r}")


def _read_hunks(data: bytes, files: dict[str, FilePatch]) -> None:
    lines = data.split(b"\n")
    current: FilePatch | None = None
    seen: set[str] = set()
    k = 0
    while k < len(lines):
        line = lines[k]
        k += 1
        if line.startswith(b"diff --git a/"):
            path = line[len(b"diff --git a/") :].partition(b" b/")[0].decode("utf-8", "replace")
            current = files.get(path)
            if current is None or path in seen:
                raise PatchError("CF415", f"the patch changes {path!r} without naming its hash")
            seen.add(path)
            continue
        match = _HUNK.match(line)
        if match is None:
            continue
        if current is None:
            raise PatchError("CF415", "the patch has a hunk of no file")
        old_start, old_count, new_start, new_count = map(int, match.groups())
        old: list[bytes] = []
        new: list[bytes] = []
        previous = b""
        while k < len(lines):
            mark, body = lines[k][:1], lines[k][1:]
            if mark == b"\\":
                for side in _sides(previous, old, new):
                    side[-1] = side[-1].removesuffix(b"\n")
            elif len(old) >= old_count and len(new) >= new_count:
                break
            elif mark and mark in b" -+":
                for side in _sides(mark, old, new):
                    side.append(body + b"\n")
            else:
                break
            previous = mark
            k += 1
        if len(old) != old_count or len(new) != new_count:
            raise PatchError("CF415", f"the patch is damaged in {current.path}")
        starts = (old_start - (old_count > 0), new_start - (new_count > 0))
        current.hunks.append((starts[0], old, starts[1], new))
    if set(files) != seen:
        raise PatchError("CF415", f"the patch has no diff for {sorted(set(files) - seen)[0]}")


def _sides(mark: bytes, old: list[bytes], new: list[bytes]) -> list[list[bytes]]:
    return [*([old] if mark in (b" ", b"-") else []), *([new] if mark in (b" ", b"+") else [])]


def patched(data: bytes, file: FilePatch, *, reverse: bool = False) -> bytes:
    """A file's bytes with its hunks applied, exactly where they say."""
    lines = data.split(b"\n")
    last = lines.pop()
    lines = [line + b"\n" for line in lines] + ([last] if last else [])
    out: list[bytes] = []
    at = 0
    for old_start, old, new_start, new in file.hunks:
        if reverse:
            old_start, old, new = new_start, new, old
        if old_start < at or lines[old_start : old_start + len(old)] != old:
            raise PatchError("CF414", f"{file.path}: a hunk does not fit")
        out += lines[at:old_start] + new
        at = old_start + len(old)
    return b"".join(out + lines[at:])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What apply or unapply did: files written or removed, and files that were so already."""

    changed: tuple[str, ...]
    unchanged: tuple[str, ...]


def apply(data: bytes, root: Path) -> Outcome:
    """Apply a patch to the tree in ``root`` (the folder that holds the package)."""
    return _run(parse_patch(data), root, reverse=False)


def unapply(data: bytes, root: Path) -> Outcome:
    """Take a patch out again: every byte as before, added files gone."""
    return _run(parse_patch(data), root, reverse=True)


def originals(data: bytes, root: Path) -> dict[str, bytes] | None:
    """The unpatched bytes of every file that a patch edits, if it is applied to a tree."""
    try:
        patch = parse_patch(data)
        root = root.resolve()
        if _plan(patch, root, reverse=False):
            return None
        found = _plan(patch, root, reverse=True)
    except (PatchError, OSError):
        return None
    return {path: before for path, before in found.items() if before is not None}


def _run(patch: Patch, root: Path, *, reverse: bool) -> Outcome:
    root = root.resolve()
    writes = _plan(patch, root, reverse=reverse)
    # What the edited files import comes first and goes last.
    added = {file.path for file in patch.files if file.before is None}
    order = sorted(writes, key=lambda path: ((path in added) == reverse, path))
    for path in order:
        _write(_target(root, path), writes[path])
    if reverse:
        _remove_folders(root, sorted(added))
    _remove_leftovers(root, [file.path for file in patch.files])
    same = [file.path for file in patch.files if file.path not in writes]
    return Outcome(tuple(order), tuple(same))


def _plan(patch: Patch, root: Path, *, reverse: bool) -> dict[str, bytes | None]:
    """Path -> the bytes to write (None: remove).  PatchError if any file fits neither side."""
    writes: dict[str, bytes | None] = {}
    wrong: list[str] = []
    for file in patch.files:
        target = _target(root, file.path)
        data = target.read_bytes() if target.is_file() else None
        here = None if data is None else sha256(data)
        wanted, other = (file.before, file.after) if reverse else (file.after, file.before)
        if here == wanted:
            continue
        if here != other or (data is None and target.exists()):
            wrong.append(f"{file.path} ({'missing' if data is None else 'changed'})")
            continue
        result = None if wanted is None else patched(data or b"", file, reverse=reverse)
        if result is not None and sha256(result) != wanted:
            raise PatchError("CF415", f"the patch's hunks of {file.path} do not give its hash")
        writes[file.path] = result
    if wrong:
        verb = "unapply" if reverse else "apply"
        raise PatchError(
            "CF414",
            f"cannot {verb}: not the files this patch was made for "
            f"({patch.package} {patch.version}): {', '.join(wrong)}; nothing was written",
            "compile the spec again for this tree",
        )
    return writes


def _target(root: Path, path: str) -> Path:
    """The file that a patch's path means; PatchError if a link leads out of the tree."""
    target = root.joinpath(*PurePosixPath(path).parts)
    resolved = target.resolve()
    if not resolved.is_relative_to(root):
        raise PatchError("CF415", f"{path} leads out of the tree, to {resolved}")
    return resolved


def _write(target: Path, data: bytes | None) -> None:
    if data is None:
        target.unlink()
        _sync(target.parent)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}{_TEMP}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        if target.exists():
            was = target.stat()
            with contextlib.suppress(PermissionError):
                os.fchown(stream.fileno(), was.st_uid, was.st_gid)
            os.fchmod(stream.fileno(), was.st_mode & 0o7777)
        os.fsync(stream.fileno())
    temporary.replace(target)
    _sync(target.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_folders(root: Path, added: Sequence[str]) -> None:
    for folder in {root.joinpath(*PurePosixPath(path).parent.parts) for path in added}:
        if folder.is_symlink() or not folder.is_dir():
            continue
        _remove_leftovers(root, added)
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else's file is in it
            folder.rmdir()


def _remove_leftovers(root: Path, paths: Sequence[str]) -> None:
    """Temporary files that a killed run left."""
    for path in paths:
        target = root.joinpath(*PurePosixPath(path).parts)
        with contextlib.suppress(OSError):
            target.with_name(f".{target.name}{_TEMP}").unlink()
