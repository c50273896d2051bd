"""How long a real vLLM takes to load weights: its stock loader against ``--load-format cfac``.

``python examples/bench/load_weights.py --engine build/engine/vllm-0.32.0 --model
build/models/large -n 6`` starts each in turn, with the checkpoint evicted from the page cache
(cold) and read into it (warm).  The figure is vLLM's own, of its log: "Loading weights took … s"
covers reading and copying into the parameters, of which the engine alone knows the end.  Every
start answers the same requests, and all answers must be equal.  Interrupted (Ctrl-C, SIGTERM) it
gives the rounds that are whole.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import sys
import tempfile
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

from loading_worker import prepare
from stats import table, typical_ratio, write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "vllm"))
from server import Server

from cfac.native import binding

ROOT = Path(__file__).resolve().parents[2]
SIDES = {"stock": [], "cfac": ["--load-format=cfac"]}
CACHES = ("warm", "cold")
PROMPTS = ("One two three", "The engine starts", "A worker waits for the handle")
TOOK = re.compile(r"Loading weights took ([0-9.]+) seconds")
#: What says that cfac's loader did not load.
FELL_BACK = ("vLLM's own reader is used", "it reads itself")


class BenchFailed(Exception):
    """The message says what is not as it should be."""


def plugin(folder: Path) -> dict[str, str]:
    """Variables by which an engine finds this checkout's cfac, as if it were installed there.

    What an installation writes beside the package: the entry points of pyproject.toml.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    version = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{version}")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    path = os.pathsep.join([str(folder), str(ROOT)])
    return {"PYTHONPATH": path, binding.VARIABLE: str(binding.library()._name)}


def start(
    engine: Path, model: Path, side: str, cache: str, environment: dict[str, str]
) -> tuple[float, list[dict[str, Any]]]:
    """(seconds that loading the weights took, the answers) of one start."""
    prepare([str(path) for path in sorted(model.glob("*.safetensors"))], cache == "cold")
    chosen = environment if side == "cfac" else {}
    with Server(engine, model, environment=chosen, arguments=SIDES[side]) as server:
        try:
            server.wait_ready(timeout=1800)
            answers = [server.complete(prompt, 16) for prompt in PROMPTS]
        except (OSError, RuntimeError) as error:
            raise BenchFailed(f"{side}: {error}") from error
        log = server.log
    took = TOOK.findall(log)
    if len(took) != 1:
        raise BenchFailed(f"{side}: the log tells {len(took)} times how long the weights took")
    if side == "cfac" and ("(cfac)" not in log or any(words in log for words in FELL_BACK)):
        raise BenchFailed("cfac: its loader was not used")
    return float(took[0]), answers


def measure(
    engine: Path, model: Path, rounds: int, environment: dict[str, str]
) -> tuple[dict[str, dict[str, list[float]]], int]:
    """(cache -> side -> seconds per round, rounds that are whole)."""
    found: dict[str, dict[str, list[float]]] = {c: {side: [] for side in SIDES} for c in CACHES}
    expected: list[dict[str, Any]] | None = None
    whole = 0
    try:
        for number in range(rounds):
            for place, cache in enumerate(CACHES):
                turned = (number + place) % 2
                for side in sorted(SIDES, reverse=bool(turned)):
                    seconds, answers = start(engine, model, side, cache, environment)
                    expected = expected or answers
                    if answers != expected:
                        raise BenchFailed(f"{side}, {cache}: it answers differently")
                    found[cache][side].append(seconds)
                    print(f"{cache}, {side}: {seconds:.2f} s", flush=True)
            whole = number + 1
            print(f"round {whole} of {rounds} is done", flush=True)
    except KeyboardInterrupt:
        if not whole:
            raise
    for cache, side in product(CACHES, SIDES):
        del found[cache][side][whole:]
    return found, whole


def report(found: dict[str, dict[str, list[float]]], size: int) -> dict[str, Any]:
    """Print the table; stock's time over cfac's."""
    rows = [["", "stock s", "cfac s", "cfac GB/s", "stock over cfac", "interval", "confidence"]]
    ratios = {}
    for cache, sides in found.items():
        ratio = typical_ratio(list(zip(sides["cfac"], sides["stock"], strict=True)))
        ratios[cache] = ratio._asdict()
        own = statistics.median(sides["cfac"])
        span = f"{ratio.low:.2f} - {ratio.high:.2f}"
        stock = statistics.median(sides["stock"])
        figures = [f"{stock:.2f}", f"{own:.2f}", f"{size / own / 1e9:.2f}"]
        rows.append([cache, *figures, f"{ratio.median:.2f}", span, f"{ratio.confidence:.0%}"])
    print(table(rows))
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", type=Path, default=ROOT / "build/engine/vllm-0.32.0")
    parser.add_argument("--model", type=Path, default=ROOT / "build/models/large")
    parser.add_argument("-n", "--rounds", type=int, default=6, help="at least 6 for 95%% intervals")
    parser.add_argument("--json", type=Path, help="where the samples go")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    engine, model = arguments.engine.absolute(), arguments.model.resolve()
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    if not size:
        parser.error(f"{model} has no safetensors files: make it with make models")
    try:
        with tempfile.TemporaryDirectory(prefix="cfac-load-weights-") as folder:
            found, rounds = measure(engine, model, arguments.rounds, plugin(Path(folder)))
    except BenchFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    ratios = report(found, size)
    facts = {"rounds": rounds, "model": model.name, "bytes": size}
    write_json(arguments.json, {**facts, "stock_over_cfac": ratios, "seconds": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
