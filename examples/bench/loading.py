"""How fast weights are loaded: cfac beside other loaders, and beside plain reads.

``python examples/bench/loading.py`` makes two checkpoints under build/loaders: dense (4 GB, 147
tensors, 2 shards, as a Llama) and MoE (2 GB, 6,291 tensors, as a Qwen3 MoE); and an environment
with the other loaders there.  It then measures every loader on both, cold (evicted from the page
cache) and warm, into fresh memory and into existing tensors, in rounds, each round in another
order.  It prints medians, and per cell each loader's time and CPU time over cfac's with their
intervals: above 1 the other one is slower.  The raw reads are a bound, not a loader: no tensors,
no copies.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from stats import table, typical_ratio, write_json

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "loaders"
WORKER = Path(__file__).with_name("loading_worker.py")
PACKAGES = [
    *("torch==2.13.0", "numpy", "safetensors==0.8.0", "fastsafetensors==0.5.0"),
    *("runai-model-streamer==0.17.1", "tensorizer==2.12.1"),
]
POOL = 16 << 20
LEAST = 1e-6  # seconds, where a clock shows none
#: How many of tensorizer's files a shard needs.
SHARES = {"dense": 1, "moe": 8}


@dataclass(frozen=True)
class Side:
    """A loader with its settings; ``tool`` is its name in loading_worker.py."""

    label: str
    tool: str
    environment: dict[str, str] = field(default_factory=dict)


BUFFERED = {"RUNAI_STREAMER_FS_STRATEGY": "sync_buffered", "RUNAI_STREAMER_CONCURRENCY": "2"}
SIDES = [
    Side("cfac", "cfac"),
    Side("safetensors, mmap", "safetensors"),
    Side("safetensors, pread", "safetensors-pread"),
    Side("fastsafetensors", "fastsafetensors"),
    Side("fastsafetensors, tuned", "fastsafetensors", {"FASTSAFETENSORS_ODIRECT": "0"}),
    Side("runai streamer", "runai"),
    Side("runai streamer, tuned", "runai", BUFFERED),
    Side("tensorizer", "tensorizer"),
    Side("raw reads", "raw"),
]
CELLS = [
    f"{model} {cache} {where}"
    for model, cache, where in product(("dense", "moe"), ("warm", "cold"), ("fresh", "into"))
]


class BenchFailed(Exception):
    """The message says what is not as it should be."""


# -- the checkpoints --------------------------------------------------------------


def shapes(model: str, scale: float) -> list[dict[str, list[int]]]:
    """name -> shape, for each shard; ``scale`` shrinks the first dimensions."""

    def rows(count: int) -> int:
        return max(1, round(count * scale))

    found: dict[str, list[int]] = {}
    width, vocabulary = (2048, 128256) if model == "dense" else (512, 151936)
    found["model.embed_tokens.weight"] = [rows(vocabulary), width]
    for layer in range(16):
        at = f"model.layers.{layer}"
        heads = {"q": 2048, "k": 512, "v": 512, "o": 2048}
        for name, count in heads.items():
            found[f"{at}.self_attn.{name}_proj.weight"] = [rows(count), width]
        found[f"{at}.input_layernorm.weight"] = [width]
        found[f"{at}.post_attention_layernorm.weight"] = [width]
        if model == "dense":
            for name in ("gate", "up", "down"):
                found[f"{at}.mlp.{name}_proj.weight"] = [rows(13312), width]
            continue
        for name in ("q_norm", "k_norm"):
            found[f"{at}.self_attn.{name}.weight"] = [128]
        found[f"{at}.mlp.gate.weight"] = [128, width]
        for expert, name in product(range(128), ("gate", "up", "down")):
            found[f"{at}.mlp.experts.{expert}.{name}_proj.weight"] = [rows(256), width]
    found["model.norm.weight"] = [width]
    found["lm_head.weight"] = [rows(vocabulary), width]
    names = list(found)
    if model == "moe":
        return [found]
    half = len(names) // 2
    return [{n: found[n] for n in part} for part in (names[:half], names[half:])]


def make(model: str, scale: float, folder: Path) -> list[Path]:
    """The checkpoint's files; made unless they are there."""
    made = []
    for number, tensors in enumerate(shapes(model, scale), 1):
        path = folder / f"{model}-{scale:g}-{number}.safetensors"
        made.append(path)
        if not path.exists():
            write(path, tensors)
    return made


def write(path: Path, tensors: dict[str, list[int]]) -> None:
    """A bf16 safetensors file of random bytes, a pool of them over and over at odd offsets."""
    header, at = {}, 0
    for name in sorted(tensors):
        size = 2 * tensors[name][0] * (tensors[name][1] if len(tensors[name]) > 1 else 1)
        entry = {"dtype": "BF16", "shape": tensors[name], "data_offsets": [at, at + size]}
        header[name], at = entry, at + size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pool = random.Random(len(text)).randbytes(POOL)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        left, turn = at, 0
        while left:
            begin = turn * 4099 % (POOL // 2)
            piece = pool[begin : begin + left]
            file.write(piece)
            left, turn = left - len(piece), turn + 1
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


# -- the loaders ------------------------------------------------------------------


def environment(folder: Path) -> Path:
    """The Python of an environment that has the other loaders; made unless it is there."""
    python = folder / "venv" / "bin" / "python"
    stamp = folder / "venv" / "cfac-loaders-ready"
    if not stamp.exists() or stamp.read_text() != "\n".join(PACKAGES):
        print("making an environment with the other loaders ...", flush=True)
        venv.create(folder / "venv", with_pip=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)
        stamp.write_text("\n".join(PACKAGES))
    return python


def library() -> str:
    """Where this environment's C library of cfac is."""
    from cfac.native import binding

    return str(binding.library()._name)


class Worker:
    """A side's process: it has imported its loader, and forks for each measurement."""

    def __init__(self, side: Side, python: Path) -> None:
        self.side = side
        own = {"PYTHONPATH": str(ROOT), "CFAC_NATIVE_LIBRARY": library()}
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        self.process = subprocess.Popen(
            [python, WORKER, side.tool],
            env=os.environ | own | side.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """A measurement's outcome; BenchFailed if there is none."""
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            self.log.seek(0)
            tail = self.log.read()[-2000:].strip()
            raise BenchFailed(f"{self.side.label}: {answer['error']}\n{tail}")
        return dict(answer)

    def close(self) -> None:
        """End it; a measurement under way comes to its end."""
        self.process.communicate()
        self.log.close()


# -- the rounds -------------------------------------------------------------------


def turned(workers: list[Worker], number: int, place: int) -> list[Worker]:
    """The order in a round and a cell: another first each round, backwards in every other one.

    A host may cache what its guest evicted, and a loader leaves memory as it had it.
    """
    first, step = number + place, -1 if number % 2 else 1
    return [workers[(first + step * index) % len(workers)] for index in range(len(workers))]


def measure(
    workers: list[Worker], files: dict[str, dict[str, list[str]]], cells: list[str], rounds: int
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """cell -> side -> an outcome per round; all sides of a cell right after one another.

    Interrupted (Ctrl-C, SIGTERM) it gives the rounds that are whole, if there are any.
    """
    found: dict[str, dict[str, list[dict[str, Any]]]] = {
        cell: {worker.side.label: [] for worker in workers} for cell in cells
    }
    whole = 0
    try:
        for number in range(rounds):
            for place, cell in enumerate(cells):
                for worker in turned(workers, number, place):
                    found[cell][worker.side.label].append(ask(worker, files, cell))
            whole = number + 1
            print(f"round {whole} of {rounds} is done", flush=True)
    except KeyboardInterrupt:
        if not whole:
            raise
    for cell, sides in found.items():
        for label in sides:
            del sides[label][whole:]
        sums = {
            label: {o["checksum"] for o in outcomes if o["checksum"] is not None}
            for label, outcomes in sides.items()
        }
        if len(set().union(*sums.values())) > 1:
            raise BenchFailed(f"{cell}: the loaders loaded different bytes: {sums}")
    return found


def ask(worker: Worker, files: dict[str, dict[str, list[str]]], cell: str) -> dict[str, Any]:
    """One measurement."""
    model, cache, where = cell.split()
    kind = "tensorizer" if worker.side.tool == "tensorizer" else "safetensors"
    return worker.ask(
        files=files[model][kind],
        headers=files[model]["safetensors"],
        into=where == "into",
        cold=cache == "cold",
    )


def report(found: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Print the tables; the ratios to cfac."""
    ratios: dict[str, Any] = {}
    for cell, sides in found.items():
        rows = [["", "seconds", "CPU-s", "peak MB", "over cfac", "interval", "confidence"]]
        rows[0] += ["CPU over cfac", "interval"]
        own = sides.get("cfac", [])
        for label, outcomes in sides.items():
            row = [label] + [
                f"{statistics.median(o[key] for o in outcomes) / unit:.{digits}f}"
                for key, unit, digits in (
                    ("seconds", 1, 3), ("cpu_seconds", 1, 2), ("peak_bytes", 1e6, 0)
                )
            ]  # fmt: skip
            if label == "cfac" or not own:
                rows.append([*row, "", "", "", "", ""])
                continue
            wall, cpu = (
                typical_ratio([(max(a[key], LEAST), max(b[key], LEAST)) for a, b in pairs])
                for pairs in [list(zip(own, outcomes, strict=True))]
                for key in ("seconds", "cpu_seconds")
            )
            ratios.setdefault(cell, {})[label] = wall._asdict() | {"cpu": cpu._asdict()}
            row += [f"{wall.median:.2f}", f"{wall.low:.2f} - {wall.high:.2f}"]
            row += [
                f"{wall.confidence:.0%}",
                f"{cpu.median:.2f}",
                f"{cpu.low:.2f} - {cpu.high:.2f}",
            ]
            rows.append(row)
        print(f"\n{cell}\n{table(rows)}")
    return ratios


def chosen(parser: argparse.ArgumentParser, words: list[str], all_: list[str]) -> list[str]:
    """Those of ``all_`` that contain every word of one of the comma-separated choices."""
    if not words:
        return all_
    found = [one for one in all_ if any(all(w in one for w in c.split()) for c in words)]
    if not found:
        parser.error(f"none of {', '.join(all_)} is meant by {words}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="at least 6 for 95%% intervals")
    parser.add_argument("--scale", type=float, default=1.0, help="of the checkpoints' sizes")
    parser.add_argument("--cell", action="append", default=[], help="words of cells, as 'moe warm'")
    parser.add_argument("--side", action="append", default=[], help="words of loaders, as cfac")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="checkpoints, environment")
    parser.add_argument("--python", type=Path, help="one that has the loaders; default: made")
    parser.add_argument("--json", type=Path, help="where the samples go")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cells = chosen(parser, arguments.cell, CELLS)
    labels = chosen(parser, arguments.side, [side.label for side in SIDES])
    sides = [side for side in SIDES if side.label in labels]
    folder = arguments.folder.resolve()
    python = arguments.python or environment(folder)
    workers = [Worker(side, python) for side in sides]
    try:
        files: dict[str, dict[str, list[str]]] = {}
        for model in sorted({cell.split()[0] for cell in cells}):
            made = make(model, arguments.scale, folder)
            files[model] = {"safetensors": [str(path) for path in made], "tensorizer": []}
            for worker in [w for w in workers if w.side.tool == "tensorizer"]:
                for source in made:
                    own = [source.with_suffix(f".{n}.tensors") for n in range(SHARES[model])]
                    files[model]["tensorizer"] += [str(path) for path in own]
                    if not all(path.exists() for path in own):
                        targets = [str(path) for path in own]
                        worker.ask(convert={"source": str(source), "targets": targets})
        found = measure(workers, files, cells, arguments.rounds)
        ratios = report(found)
    except BenchFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    finally:
        for worker in workers:
            worker.close()
    done = len(next(iter(found[cells[0]].values())))
    settings = {"rounds": done, "scale": arguments.scale, "packages": PACKAGES}
    write_json(arguments.json, {**settings, "over_cfac": ratios, "samples": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
