"""A model of headers and holes, of any size: what the compiler reads of one is the same.

``python examples/bench/sparse_model.py FOLDER --tensors 100000 --bytes 700000000000``
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def make(folder: Path, tensors: int, total: int, shards: int) -> None:
    """Write ``shards`` files with their index; tensors are BF16 and of equal size."""
    folder.mkdir(parents=True, exist_ok=True)
    elements = total // tensors // 2
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header: dict[str, object] = {}
        at = 0
        for number in range(shard, tensors, shards):
            tensor = f"model.layers.{shard}.mlp.experts.{number}.down_proj.weight"
            end = at + 2 * elements
            header[tensor] = {"dtype": "BF16", "shape": [elements], "data_offsets": [at, end]}
            weight_map[tensor] = name
            at = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + at)
    index = {"metadata": {"total_size": 2 * elements * tensors}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=700_000_000_000)
    parser.add_argument("--shards", type=int, default=100)
    options = parser.parse_args()
    make(options.folder, options.tensors, options.bytes, options.shards)


if __name__ == "__main__":
    main()
