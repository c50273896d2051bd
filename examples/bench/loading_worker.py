"""One loader, measured: the child process of loading.py, with one peer's environment.

Reads a JSON line per measurement on standard input: ``files``, ``into`` (existing tensors, else
fresh memory), ``cold``.  Each is done in a fork of this process, which has imported all it needs,
and is answered with a JSON line: seconds, CPU-seconds, peak memory above what was there before
(bytes), a checksum of what was loaded, or an error.

The clock runs from before the files are opened until every tensor is in memory of its own: the
same end for all, so a loader that hands out views of a buffer that it reuses pays for the copy.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

Tensors = dict[str, Any]
BLOCK = 8 << 20
PAGE = 4096
ATTEMPTS = 10
MADV_POPULATE_WRITE = 23  # Linux 5.14; madvise(2)


# -- the loaders: (files, existing tensors or None) -> the tensors, and what keeps them ------------


def by_cfac(files: list[str], into: Tensors | None) -> Any:
    import cfac

    with cfac.load(files, progress=False, cache=False) as loader:
        if into is None:
            return dict(loader)
        loader.load_into(into)
        return into


def by_safetensors(backend: str) -> Any:
    def load(files: list[str], into: Tensors | None) -> Any:
        from safetensors import safe_open

        found = {}
        for path in files:
            with safe_open(path, framework="pt", backend=backend) as file:
                for name in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(name)
                    if into is not None:
                        into[name].copy_(tensor)
                    else:  # mmap's are pages of the file, pread's are memory of their own
                        found[name] = tensor.clone() if backend == "mmap" else tensor
        return found if into is None else into

    return load


def by_fastsafetensors(files: list[str], into: Tensors | None) -> Any:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: files})
    buffer = loader.copy_files_to_device()
    found = {}
    for name in loader.get_keys():
        tensor = buffer.get_tensor(name)
        if into is not None:
            into[name].copy_(tensor)
        else:
            found[name] = tensor
    if into is not None:
        buffer.close()
        loader.close()
        return into
    KEPT.append((loader, buffer))  # the tensors are views of its buffers, which are not reused
    return found


def by_runai(files: list[str], into: Tensors | None) -> Any:
    from runai_model_streamer import SafetensorsStreamer

    found = {}
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files)
        for name, tensor in streamer.get_tensors():
            if into is not None:
                into[name].copy_(tensor)
            else:
                found[name] = tensor.clone()  # its buffer is used again
    return found if into is None else into


def by_tensorizer(files: list[str], into: Tensors | None) -> Any:
    from tensorizer import TensorDeserializer

    found = {}
    for path in files:
        with TensorDeserializer(path, device="cpu") as tensors:
            for name in tensors:
                if into is not None:
                    into[name].copy_(tensors[name])
                else:
                    found[name] = tensors[name]
    return found if into is None else into


def by_reads(files: list[str], into: Tensors | None) -> Any:
    """The bound: reads of 8 MiB, no tensors, into memory faulted as it is read to, or before.

    A thread per core where the page cache has the files.  Where it has nothing, O_DIRECT, 16 at a
    time, to huge pages: as fast as the disk is.
    """
    direct = os.O_DIRECT if resident(files[0]) < 0.5 else 0
    jobs: list[tuple[int, int, int, memoryview]] = []
    opened, targets = [], into["raw"] if into is not None else [None] * len(files)
    for path, target in zip(files, targets, strict=True):
        fd = os.open(path, os.O_RDONLY | direct)
        opened.append(fd)
        size = os.fstat(fd).st_size
        memory = target or anonymous(size, huge=bool(direct))
        KEPT.append(memory)
        view = memoryview(memory)
        jobs += [(fd, at, min(BLOCK, size - at), view) for at in range(0, size, BLOCK)]
    jobs.reverse()

    def work() -> None:
        while True:
            try:
                fd, at, length, view = jobs.pop()
            except IndexError:
                return
            end = at + length
            while at < end:
                limit = -(-end // PAGE) * PAGE if direct else end
                at += os.preadv(fd, [view[at:limit]], at)

    count = 16 if direct else len(os.sched_getaffinity(0))
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for fd in opened:
        os.close(fd)
    return {}


def anonymous(size: int, huge: bool) -> Any:
    """Memory of whole pages, private as malloc's is; huge pages if the kernel has them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, -(-size // PAGE)) * PAGE, flags=flags)
    if huge:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def faulted(size: int, huge: bool) -> Any:
    """The same, and all there."""
    memory = anonymous(size, huge)
    memory.madvise(MADV_POPULATE_WRITE)
    return memory


KEPT: list[Any] = []
LOADERS = {
    "cfac": by_cfac,
    "safetensors": by_safetensors("mmap"),
    "safetensors-pread": by_safetensors("pread"),
    "fastsafetensors": by_fastsafetensors,
    "runai": by_runai,
    "tensorizer": by_tensorizer,
    "raw": by_reads,
}
IMPORTS = {
    "cfac": ["cfac.runtime.loading"],
    "safetensors": ["safetensors.torch"],
    "safetensors-pread": ["safetensors.torch"],
    "fastsafetensors": ["fastsafetensors"],
    "runai": ["runai_model_streamer"],
    "tensorizer": ["tensorizer"],
    "raw": [],
}


# -- what surrounds a measurement ------------------------------------------------------------------


def resident(path: str) -> float:
    """The share of a file's pages that are in the page cache.

    By mincore(2) on a mapping that is never touched: a read that must not wait (RWF_NOWAIT) puts
    the page that it misses in the cache.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    with Path(path).open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    pages = ctypes.create_string_buffer(-(-len(memory) // PAGE))
    start = ctypes.c_char.from_buffer(memory)
    if libc.mincore(ctypes.addressof(start), len(memory), pages) != 0:
        raise OSError(ctypes.get_errno(), "mincore", path)
    return sum(pages.raw) / len(pages)


def prepare(files: list[str], cold: bool) -> None:
    """Evict the files from the page cache, or read them into it; RuntimeError if that fails."""
    for path in files if not cold else []:
        with Path(path).open("rb", buffering=0) as file:
            while file.read(BLOCK):
                pass
    # the host of a virtual machine may have taken free memory away, and gives it back page by page,
    # 12 microseconds each, to who asks first: so that is done here
    faulted(sum(Path(path).stat().st_size for path in files), huge=True).close()
    for path in files:
        for attempt in range(ATTEMPTS):
            if cold:
                fd = os.open(path, os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
            share = resident(path)
            if share <= 0.02 if cold else share >= 0.98:
                break
            # pages that the kernel holds just now (reclaim, compaction) stay, and with large folios
            # one such is a good part of a small file
            time.sleep(0.01 * 2**attempt)
        else:
            raise RuntimeError(f"{path} is {share:.0%} in the page cache")


def existing(tool: str, files: list[str], headers: list[str], cold: bool) -> Tensors:
    """Tensors (the bound: memory) to load into, their pages faulted in; by safetensors headers."""
    if tool == "raw":
        return {"raw": [faulted(Path(path).stat().st_size, huge=cold) for path in files]}
    import torch

    shapes: dict[str, list[int]] = {}
    for path in headers:
        with Path(path).open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes |= {name: entry["shape"] for name, entry in header.items()}
    return {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}


def memory_now(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) * 1024


def checksum(tensors: Tensors) -> int:
    """Of the first and last bytes of every tensor, by name."""
    import torch

    total = 0
    for name in sorted(tensors):
        flat = tensors[name].view(-1).view(torch.uint8)
        ends = bytes(flat[:32].tolist()) + bytes(flat[-32:].tolist())
        total = zlib.crc32(ends, zlib.crc32(name.encode(), total))
    return total


def measure(
    tool: str, files: list[str], headers: list[str], into: bool, cold: bool
) -> dict[str, Any]:
    if tool != "raw":
        import torch

        torch.set_num_threads(1)  # many small copies are slower on several
    targets = existing(tool, files, headers, cold) if into else None
    prepare(files, cold)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here (proc(5))
    before = memory_now("VmRSS")
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    loaded = LOADERS[tool](files, targets)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "cpu_seconds": after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime,
        "peak_bytes": max(0, memory_now("VmHWM") - before),
        "checksum": checksum(loaded) if loaded else None,
    }


def convert(source: str, targets: list[str]) -> dict[str, Any]:
    """A safetensors file in tensorizer's own format, a share of its tensors in each target.

    One of its files has room for the metadata of some thousand tensors.
    """
    from safetensors.torch import load_file
    from tensorizer import TensorSerializer

    tensors = load_file(source)
    names = list(tensors)
    for number, target in enumerate(targets):
        part = f"{target}.part"
        serializer = TensorSerializer(part)
        share = names[
            number * len(names) // len(targets) : (number + 1) * len(names) // len(targets)
        ]
        serializer.write_state_dict({name: tensors[name] for name in share})
        serializer.close()
        Path(part).rename(target)
    return {}


def answer(tool: str, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return convert(**request["convert"]) if "convert" in request else measure(tool, **request)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(tool: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the loaders print
    if tool != "raw":
        import torch  # noqa: F401
    for name in IMPORTS[tool]:
        __import__(name)
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with os.fdopen(writing, "w") as given:
                json.dump(answer(tool, json.loads(line)), given)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as given:
            found = given.read()
        # answered when it is gone: while its memory is taken down, its files cannot be evicted
        # (posix_fadvise(2) leaves mapped pages) and the next measurement would share the cores
        _, status = os.waitpid(child, 0)
        failure = json.dumps({"error": f"it ended with status {status}"})
        print(failure if status else found, file=answers)
    os._exit(0)  # nothing to clean up: torch alone takes a second for that


if __name__ == "__main__":
    main(sys.argv[1])
