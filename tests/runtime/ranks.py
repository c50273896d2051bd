"""One rank of the distributed tests: ``python ranks.py SCENARIO RANK RANKS FOLDER``.

The rank's files are FOLDER/rank0 … (copies), so that one rank's can be broken.  What a scenario
finds is printed as one line of JSON.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from checkpoints import by_library, memory_kb, raw, same

import cfac


def outcome(work: Callable[[], object]) -> str:
    """How some work ends: "fine", or the exception."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


def digest(tensors: dict[str, torch.Tensor]) -> str:
    whole = hashlib.sha256()
    for name, tensor in tensors.items():
        whole.update(repr((name, str(tensor.dtype), list(tensor.shape))).encode() + raw(tensor))
    return whole.hexdigest()


def check(folder: Path, group: object, **options: object) -> int:
    """All ways to load, each compared with the safetensors library; gives the bytes read here."""
    expected = by_library(*sorted(folder.glob("*.safetensors")))
    model = cfac.load(folder, "cpu", group, **options)
    same(dict(model), expected)
    read = model.report.counters["bytes"]
    into = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
    into["a1"] = torch.empty(expected["a1"].numel(), 2)[:, 0]
    model.load_into(into)
    same({name: tensor.contiguous() for name, tensor in into.items()}, expected)
    some = list(expected)[::3]
    same(
        dict(cfac.load(folder, "cpu", group, names=some, **options)), {n: expected[n] for n in some}
    )
    same({"b1": model.get("b1")}, {"b1": expected["b1"]})
    part = slice(100, 1500)
    same({"a4": model.get("a4", part)}, {"a4": expected["a4"][part].clone()})
    cut = cfac.load(folder, "cpu", group, names="a4", slices={"a4": part}, **options)
    same(dict(cut), {"a4": expected["a4"][part].clone()})
    for count, (name, tensor) in enumerate(model):  # all ranks stop at the same place
        assert raw(tensor) == raw(expected[name])
        if count == 2:
            break
    return read


def whole(rank: int, folder: Path) -> dict[str, object]:
    mine, found = folder / f"rank{rank}", {}
    for name, options in {
        "buffered": {"backend": "buffered", "chunk_size": 8192},
        "one page": {"backend": "buffered", "chunk_size": 4096, "ring": 2},
        "direct": {"backend": "io_uring", "chunk_size": 65536},
        "auto": {},
        "checksums": {"backend": "buffered", "checksums": folder / "manifest.json"},
    }.items():
        found[name] = check(mine, dist.group.WORLD, **options)
    return found


def groups(rank: int, folder: Path) -> dict[str, object]:
    """Two disjoint groups of two load different models at once; then all four load one."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = folder / f"model{rank // 2}"
    model = cfac.load(mine, "cpu", pairs[rank // 2], backend="buffered", chunk_size=8192)
    got = {}
    for count, (name, tensor) in enumerate(model):
        got[name] = tensor
        if rank < 2 and count == 3:  # the other pair's passes are no concern of this one's
            same(dict(model), by_library(*sorted(mine.glob("*.safetensors"))))
    same(got, by_library(*sorted(mine.glob("*.safetensors"))))
    outsider = outcome(lambda: cfac.load(mine, "cpu", pairs[1 - rank // 2]))
    read = model.report.counters["bytes"]
    all_four = check(folder / "model0", dist.group.WORLD, backend="buffered", chunk_size=16384)
    return {"read": read, "outsider": outsider, "all": all_four}


def trouble(rank: int, folder: Path) -> dict[str, object]:
    """One rank fails; the group is whole again afterwards."""
    mine, found = folder / f"rank{rank}", {}
    group = dist.group.WORLD
    bad = folder / "bad.safetensors"

    def load(**options: object) -> cfac.Loader:
        return cfac.load(mine, "cpu", group, backend="buffered", chunk_size=4096, **options)

    found["bad file"] = outcome(lambda: cfac.load(bad if rank == 1 else mine, "cpu", group))
    found["names"] = outcome(lambda: list(load(names=["a0"] if rank else ["a1"])))
    model = load()
    found["get"] = outcome(lambda: model.get("nope" if rank == 1 else "a1"))
    targets = {"a1": torch.empty(1 if rank == 1 else model.tensors["a1"].shape[0])}
    found["shape"] = outcome(lambda: model.load_into(targets))

    def stop_early() -> None:
        for _ in model:
            if rank == 1:
                raise KeyError("the consumer's own")

    found["consumer"] = outcome(stop_early)
    if rank == 1:
        path = mine / "b.safetensors"
        data = path.read_bytes()
        os.truncate(path, len(data) - 30_000)
        os.utime(path, ns=(0, 0))
    found["changed"] = outcome(lambda: list(model))
    if rank == 1:
        path.write_bytes(data)
    dist.barrier()
    found["after"] = outcome(lambda: check(mine, group, chunk_size=8192))
    return found


def memory(rank: int, folder: Path) -> dict[str, object]:
    """Anonymous memory, in KiB: before a pass that drops its tensors, at most during it, after.

    ``rest`` and ``after`` are without what malloc keeps for later (malloc_trim(3)).
    """
    group = dist.group.WORLD

    def one_pass() -> int:
        most = 0
        for _, tensor in cfac.load(
            folder / "large", "cpu", group, chunk_size=1 << 20, ring=4, progress=False
        ):
            most = max(most, memory_kb("Pss_Anon"))
            del tensor
        return most

    def trimmed() -> int:
        ctypes.CDLL(None).malloc_trim(0)
        return memory_kb("Pss_Anon")

    for _ in range(4):  # what gloo and malloc take once; gloo a MiB now and then, for good
        one_pass()
    gc.collect()
    before, rest = memory_kb("Pss_Anon"), trimmed()
    one_pass()  # malloc has again what it keeps
    during = one_pass()
    gc.collect()
    return {"before": before, "during": during, "rest": rest, "after": trimmed()}


def killed(rank: int, folder: Path) -> dict[str, object]:
    model = cfac.load(folder / f"rank{rank}", "cpu", dist.group.WORLD, chunk_size=4096, ring=2)

    def use() -> None:
        for count, _ in enumerate(model):
            if rank == 1 and count == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    first = outcome(use)
    return {"pass": first, "next": outcome(lambda: model.get("a1"))}


def main() -> None:
    scenario, rank, ranks, folder = sys.argv[1:]
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    print(json.dumps(globals()[scenario](int(rank), Path(folder))), flush=True)
    os._exit(0)  # a broken group must not keep its ranks


if __name__ == "__main__":
    main()
