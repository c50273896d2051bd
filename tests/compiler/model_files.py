"""Models of safetensors files with given sizes; the tensors' bytes are a hole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

Tensor = tuple[str, int]


def write_file(path: Path, tensors: Sequence[Tensor], pad: int = 0) -> int:
    """Write U8 tensors of these sizes one after the other; gives where the data begins."""
    header: dict[str, object] = {}
    at = 0
    for name, size in tensors:
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode() + b" " * pad
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return 8 + len(text)


def write_model(folder: Path, files: Sequence[Sequence[int]], pad: int = 0) -> list[int]:
    """One file for each list of sizes, tensors t0, t1, …; gives where their data begins."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    starts = []
    for place, sizes in enumerate(files):
        tensors = [(f"t{number + k}", size) for k, size in enumerate(sizes)]
        number += len(sizes)
        starts.append(write_file(folder / f"m-{place:03}.safetensors", tensors, pad))
    return starts


def write_index(folder: Path, weight_map: object, name: str = "model") -> Path:
    """An index beside the files."""
    path = folder / f"{name}.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path
