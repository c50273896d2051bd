"""Checksums of every chunk of a model, to find what a disk or a download broke.

A manifest is JSON: the chunk size, and for each file (by its name, without the folder) its size
and the CRC-32C of each chunk.  A file's first chunk begins at the page of its first tensor's first
byte.  Reading a part of a model with a manifest reads whole chunks, so that each can be checked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cfac.runtime.loading.model import Model

_PAGE = 4096
VERSION = 1


class ChecksumError(OSError):
    """A chunk's bytes are not those of the manifest; the message names file, bytes and tensors."""


class ManifestError(ValueError):
    """A manifest that is none, or of other files."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The checksums, by a file's name and a chunk's number in it."""

    chunk_size: int
    files: dict[str, tuple[int, list[int]]]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Manifest:
        """From a file; ManifestError, OSError."""
        with open(path, encoding="utf-8") as file:
            try:
                data = json.load(file)
                if data["version"] != VERSION:
                    raise ManifestError(f"{path}: version {data['version']}, not {VERSION}")
                return cls(int(data["chunk_size"]), dict(map(_entry, data["files"].items())))
            except ManifestError:
                raise
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ManifestError(f"{os.fspath(path)}: no manifest: {error!r}") from error

    def write(self, path: str | os.PathLike[str]) -> None:
        """To a file, whole or not at all."""
        files = {
            name: {"size": size, "crc32c": [f"{crc:08x}" for crc in crcs]}
            for name, (size, crcs) in self.files.items()
        }
        data = {"version": VERSION, "chunk_size": self.chunk_size, "files": files}
        beside = f"{os.fspath(path)}.{os.getpid()}"
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
        os.replace(beside, path)

    def check_files(self, model: Model, used: Iterable[int]) -> None:
        """That the manifest is of these files; ManifestError."""
        for number in used:
            path = model.paths[number]
            name = os.path.basename(path)
            if name not in self.files:
                raise ManifestError(f"{path}: the manifest does not have this file")
            size = os.stat(path).st_size
            if size != self.files[name][0]:
                raise ManifestError(f"{path}: {size} bytes, {self.files[name][0]} in the manifest")

    def expected(self, path: str, cell: int) -> int:
        """The checksum of a file's chunk; ManifestError if the manifest ends before."""
        crcs = self.files[os.path.basename(path)][1]
        if cell >= len(crcs):
            raise ManifestError(f"{path}: the manifest has no chunk {cell}")
        return crcs[cell]


def _entry(item: tuple[str, Mapping[str, Any]]) -> tuple[str, tuple[int, list[int]]]:
    name, entry = item
    return name, (int(entry["size"]), [int(crc, 16) for crc in entry["crc32c"]])


def grid_starts(model: Model) -> dict[int, int]:
    """The file offset at which each file's first chunk begins (native/plan.c)."""
    starts: dict[int, int] = {}
    for file, first in zip(model.files, model.begins, strict=True):
        begin = first // _PAGE * _PAGE
        starts[file] = min(starts.get(file, begin), begin)
    return starts
