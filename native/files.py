"""Which files make up a model: a file, several, a folder, or an index.

A folder stands for its index (``model.safetensors.index.json``, or the only ``*.index.json``),
else for all its ``*.safetensors`` in the order of their names.  An index is the JSON object of
the Hugging Face hub: ``weight_map`` says which file beside it holds a tensor.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

#: What the hub calls an index.
INDEX_NAME = "model.safetensors.index.json"
#: Weights in other formats, to say why a folder has nothing to read.
_OTHERS = (".bin", ".pt", ".pth", ".gguf", ".ckpt", ".npz")
Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class IndexFileError(ValueError):
    """An index that is none, or that disagrees with its files; the message names both."""


class MissingShardError(FileNotFoundError):
    """A file that an index names is missing; ``strerror`` names the index and a tensor."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files to open, in order, and what indexes say about them."""

    paths: list[str]
    #: tensor -> number of its file, from all indexes
    where: dict[str, int] = field(default_factory=dict)
    #: tensor -> the index that names it, for messages
    index_of: dict[str, str] = field(default_factory=dict)


def find(files: Path | Iterable[Path]) -> Files:
    """The files that ``files`` stands for.

    FileNotFoundError for what is missing, IndexFileError (a ValueError) for a bad index,
    ValueError for an empty list.
    """
    listed = [files] if isinstance(files, str | bytes | os.PathLike) else list(files)
    found = Files([])
    for path in listed:
        _add(os.fsdecode(path), found)
    if not found.paths:
        raise ValueError("no files to load")
    return found


def _add(path: str, found: Files) -> None:
    if os.path.isdir(path):
        index = _index_in(path)
        if index is None:
            found.paths.extend(_in_folder(path))
            return
        path = index
    if not path.endswith(".json"):
        found.paths.append(path)
        return
    folder, weight_map = os.path.dirname(path), _weight_map(path)
    numbers: dict[str, int] = {}
    for name in sorted(set(weight_map.values())):
        file = os.path.join(folder, name)
        if not os.path.exists(file):
            raise _missing(path, file, [t for t, shard in weight_map.items() if shard == name])
        numbers[name] = len(found.paths)
        found.paths.append(file)
    for tensor, name in weight_map.items():
        found.where.setdefault(tensor, numbers[name])
        found.index_of.setdefault(tensor, path)


def _index_in(folder: str) -> str | None:
    names = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors.index.json"))
    if INDEX_NAME in names:
        names = [INDEX_NAME]
    if len(names) > 1:
        raise IndexFileError(f"{folder}: several indexes ({', '.join(names)}): name one of them")
    return os.path.join(folder, names[0]) if names else None


def _in_folder(folder: str) -> list[str]:
    listed = sorted(os.listdir(folder))
    names = [name for name in listed if name.endswith(".safetensors")]
    if not names:
        other = next((name for name in listed if name.endswith(_OTHERS)), None)
        hint = f"; it has {other}: convert it to safetensors first" if other else ""
        raise FileNotFoundError(errno.ENOENT, f"no *.safetensors in this folder{hint}", folder)
    return [os.path.join(folder, name) for name in names]


def _missing(index: str, file: str, tensors: list[str]) -> MissingShardError:
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    name = os.path.basename(file)
    message = f"{index}: {name!r} is missing, which tensor {tensors[0]!r}{more} should be in"
    return MissingShardError(errno.ENOENT, message, file)


def _weight_map(path: str) -> dict[str, str]:
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait for a writer
        raise OSError(errno.EINVAL, "not a regular file", path)
    with open(path, "rb") as file:
        try:
            data: Any = json.loads(file.read(), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:  # also what is no UTF-8
            raise IndexFileError(f"{path}: not JSON: {error}") from error
    names = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(names, dict):
        raise IndexFileError(f"{path}: no index: it has no object 'weight_map'")
    for tensor, name in names.items():
        if not isinstance(name, str):
            raise IndexFileError(f"{path}: tensor {tensor!r}: its file is not text")
        if not name or os.path.isabs(name) or "\0" in name or ".." in name.split("/"):
            raise IndexFileError(f"{path}: tensor {tensor!r}: {name!r} is not beside the index")
    return names


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found
