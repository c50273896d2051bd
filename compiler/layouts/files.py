"""Which files make up a model: one file, a folder of them, or an index of shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
#: Weights in other formats, to say why a folder has nothing to read.
_OTHERS = (".bin", ".pt", ".pth", ".gguf", ".ckpt", ".npz")


class LayoutError(Exception):
    """What is wrong with a model, its index or its layout; ``code`` is a diagnostic's."""

    def __init__(self, code: str, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.help = help


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files in the order in which they are read; ``index`` where one lists them.

    ``weight_map`` is the index's: a tensor's name to the number of its file.
    """

    paths: tuple[Path, ...]
    index: Path | None = None
    weight_map: Mapping[str, int] = field(default_factory=dict)


def model_files(path: Path) -> ModelFiles:
    """The files of the model at ``path``; LayoutError CF621 or CF622."""
    try:
        if path.is_dir():
            return _folder(path)
        if not path.exists():
            raise LayoutError("CF622", f"{path}: there is no such file or folder")
        if path.name.endswith(".json"):
            return _index(path)
    except OSError as error:
        raise LayoutError("CF622", f"{path}: {error.strerror}") from error
    return ModelFiles((path,))


def _folder(path: Path) -> ModelFiles:
    names = sorted(entry.name for entry in path.iterdir())
    indices = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if len(indices) > 1:
        raise LayoutError(
            "CF622", f"{path}: several indices: {', '.join(indices)}", "name one of them"
        )
    if indices:
        return _index(path / indices[0])
    found = [name for name in names if name.endswith(SUFFIX)]
    if not found:
        others = [name for name in names if name.endswith(_OTHERS)]
        hint = f"the folder has {others[0]}: convert it to safetensors first" if others else None
        raise LayoutError("CF622", f"{path}: no file ends in {SUFFIX}", hint)
    return ModelFiles(tuple(path / name for name in found))


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object whose keys are unique."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def _index(path: Path) -> ModelFiles:
    """Read an index; the shards are beside it."""
    if not path.is_file():
        raise LayoutError("CF622", f"{path}: not a regular file")
    try:
        data = json.loads(path.read_bytes(), object_pairs_hook=_pairs)
    except (ValueError, RecursionError) as error:
        raise LayoutError("CF621", f"{path}: not an index: {error}") from error
    listed = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(listed, dict):
        raise LayoutError("CF621", f"{path}: no 'weight_map' of tensors to files")
    numbers: dict[str, int] = {}
    for tensor, shard in listed.items():
        if not isinstance(shard, str) or not shard:
            raise LayoutError("CF621", f"{path}: tensor {tensor!r}: its file is not text")
        parts = PurePosixPath(shard)
        if parts.is_absolute() or ".." in parts.parts or "\0" in shard:
            raise LayoutError(
                "CF621", f"{path}: tensor {tensor!r}: {shard!r} is not beside the index"
            )
        numbers.setdefault(shard, 0)
    shards = sorted(numbers)
    numbers = {shard: number for number, shard in enumerate(shards)}
    for shard in shards:
        if not (path.parent / shard).exists():
            tensor = next(t for t, s in listed.items() if s == shard)
            count = sum(1 for s in listed.values() if s == shard)
            more = f" and {count - 1} more" if count > 1 else ""
            raise LayoutError(
                "CF621",
                f"{path}: {shard!r} is missing, which tensor {tensor!r}{more} should be in",
                "finish the download, or name the files that are there",
            )
    return ModelFiles(
        tuple(path.parent / shard for shard in shards),
        path,
        {tensor: numbers[shard] for tensor, shard in listed.items()},
    )
