"""Run by the engine's Python: the weights that ``--load-format cfac`` gives, beside stock's.

Makes checkpoints in the folder it is given, reads each with vLLM's own loader and with the one
that the plugin registered, and prints a JSON line per checkpoint: name, how many tensors, and
whether they are the same (names, order, types, shapes, bytes), or the error of each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import DefaultModelLoader, get_model_loader
from vllm.plugins import load_general_plugins

VERSION_13 = "subfolder" not in DefaultModelLoader.Source.__dataclass_fields__


def tensor(seed: int, *shape: int, dtype=torch.float32) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return made.to(dtype)


def mixed(seed: int) -> dict[str, torch.Tensor]:
    """Wide types come first in the file, so its order is not that of the names."""
    return {
        "b.weight": tensor(seed, 300, 40, dtype=torch.bfloat16),
        "a.scale": tensor(seed + 1, 7),
        "z.scale": tensor(seed + 2, 3, dtype=torch.float64),
        "c.weight": tensor(seed + 3, 64, 129, dtype=torch.float8_e4m3fn),
        "a.empty": torch.empty(0, 4),
        "scalar": torch.tensor(3.5),
    }


def write_shards(folder: Path, names: list[str], index: list[str] | None = None) -> None:
    weight_map = {}
    for number, name in enumerate(names):
        tensors = {f"{number}.{key}": t for key, t in mixed(number * 10).items()}
        save_file(tensors, folder / name)
        if index is None or name in index:
            weight_map |= dict.fromkeys(tensors, name)
    if index is not None:
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)


def one_file(folder: Path) -> None:
    save_file(mixed(1), folder / "model.safetensors")


def shards(folder: Path) -> None:
    write_shards(folder, [f"model-{n}-of-12.safetensors" for n in range(1, 13)])


def consolidated(folder: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    write_shards(folder, [*names, "extra.safetensors"], index=names)


def twice(folder: Path) -> None:
    """One name in two files that both count: stock gives both."""
    for number in (1, 2):
        tensors = {"same": tensor(number, 50, 50), f"own{number}": tensor(9, 20)}
        save_file(tensors, folder / f"model-{number}.safetensors")


def experts(folder: Path) -> None:
    tensors = {}
    for number in range(6):
        for part in ("gate_proj", "down_proj"):
            name = f"model.layers.0.mlp.experts.{number}.{part}"
            tensors[f"{name}.weight"] = tensor(number, 30, 30)
            tensors[f"{name}.weight_scale"] = tensor(number, 1)
    save_file(tensors | {"norm.weight": tensor(3, 8)}, folder / "model.safetensors")


def sub(folder: Path) -> None:
    (folder / "part").mkdir()
    one_file(folder / "part")


def pickled(folder: Path) -> None:
    torch.save({"w": tensor(1, 5, 5)}, folder / "pytorch_model.bin")


def damaged(folder: Path) -> None:
    shards(folder)
    path = folder / "model-7-of-12.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def ranges(folder: Path) -> None:
    save_file({f"t{n:03}": tensor(n, 1000 + n * 37) for n in range(60)}, folder / "m.safetensors")


UNUSED = {"is_unused_weight": lambda name: name.startswith(("3.", "5."))}
#: name -> (what makes it, fields of the source, attributes of the loader, extra config)
CASES = {
    "one file": (one_file, {}, {}, {}),
    "shards in their natural order": (shards, {}, {}, {}),
    "a file that the index does not name": (consolidated, {}, {}, {}),
    "one name in two files": (twice, {}, {}, {}),
    "a prefix": (one_file, {"prefix": "model."}, {}, {}),
    "small chunks, few buffers": (shards, {}, {}, {"chunk_size": 4096, "ring": 2}),
    "pread": (one_file, {}, {}, {"backend": "pread", "views": False}),
    "many in a chunk": (ranges, {}, {}, {"chunk_size": 65536}),
    "the threads of stock": (one_file, {}, {}, {"enable_multithread_load": True}),
    "pickled": (pickled, {}, {}, {}),
}
NEWER = {
    "a pattern": (consolidated, {"allow_patterns_overrides": ["extra*.safetensors"]}, {}, {}),
    "a subfolder": (sub, {"subfolder": "part"}, {}, {}),
    "experts of this rank": (experts, {}, {"local_expert_ids": {1, 4}}, {}),
    "unused shards": (shards, UNUSED, {}, {}),
}


def listed(weights) -> list:
    """All are kept until the last one came, as some models do."""
    return [
        [name, str(t.dtype), list(t.shape), hashlib.sha256(raw(t)).hexdigest()]
        for name, t in list(weights)
    ]


def raw(t: torch.Tensor) -> bytes:
    return t.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def loader(load_format: str, attributes: dict, extra: dict):
    config = LoadConfig(load_format=load_format, model_loader_extra_config=extra)
    made = get_model_loader(config)
    vars(made).update(attributes)
    return made


def outcome(load_format: str, folder: Path, fields: dict, attributes: dict, extra: dict) -> list:
    if load_format != "cfac":
        extra = {k: v for k, v in extra.items() if k == "enable_multithread_load"}
    one = loader(load_format, attributes, extra)
    source = one.Source(str(folder), None, **fields)
    return listed(one._get_weights_iterator(source))


def compare(folder: Path, name: str, make, *case) -> dict:
    folder = folder / name.replace(" ", "-")
    folder.mkdir()
    make(folder)
    expected, got = outcome("auto", folder, *case), outcome("cfac", folder, *case)
    return {"name": name, "tensors": len(expected), "same": got == expected}


def secondary(folder: Path) -> dict:
    """The weights of a model that has two sources."""
    for name in ("first", "second"):
        (folder / name).mkdir()
    one_file(folder / "first")
    write_shards(folder / "second", ["model.safetensors"])
    results = []
    for load_format in ("auto", "cfac"):
        one = loader(load_format, {}, {})
        source = one.Source(str(folder / "second"), None, prefix="extra.")
        model = SimpleNamespace(secondary_weights=[source])
        config = SimpleNamespace(model=str(folder / "first"), revision=None)
        results.append(listed(one.get_all_weights(config, model)))
    same = results[0] == results[1]
    return {"name": "secondary weights", "tensors": len(results[0]), "same": same}


def refused(folder: Path, make, extra: dict) -> dict:
    folder.mkdir()
    make(folder)
    given: list = []
    try:
        one = loader("cfac", {}, extra)
        for name, _ in one._get_weights_iterator(one.Source(str(folder), None)):
            given.append(name)
    except Exception as error:
        kind, text = type(error).__name__, str(error)
        return {"name": folder.name, "error": kind, "text": text, "given": len(given)}
    return {"name": folder.name, "error": None, "given": len(given)}


def main(folder: Path, only: list[str]) -> None:
    load_general_plugins()
    with contextlib.redirect_stdout(sys.stderr):
        cases = CASES if VERSION_13 else CASES | NEWER
        results = [
            compare(folder, name, *case) for name, case in cases.items() if name in (only or cases)
        ]
        results.append(secondary(folder))
        results.append(refused(folder / "damaged", damaged, {}))
        results.append(refused(folder / "unknown key", one_file, {"chunk_sise": 4096}))
        results.append(refused(folder / "wrong value", one_file, {"distributed": "yes"}))
    for result in results:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
