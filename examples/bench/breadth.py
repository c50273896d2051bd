"""One spec beside stock for other models, and for other ways to start a real vLLM.

``python examples/bench/breadth.py --engine build/engine/vllm-0.32.0 --models build/models
-n 3`` measures each row as ``coldstart.py`` does: interleaved, one start of each side that
does not count, every answer's tokens and logprobs equal to the stock engine's.  ``--row``
chooses rows.  A row ends in one of two ways, anything else fails the benchmark: the spec's
start was faster than the stock one in every round, or it was as stock and its log says why.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart import Bench, Start, summarize
from sides import (
    OUT,
    SPECS,
    STOCK,
    BenchFailed,
    Offline,
    Server,
    Side,
    bench,
    common_options,
    install_cfac,
    labelled,
    patched,
)
from stats import table, write_json

#: The last request's number: the first, the second and the first with logprobs are enough.
LAST = 4
#: Words of a log line of cfac's that says why a start, or a process, is as in stock.
REASONS = ("as stock: ", "started by the engine itself: ")


@dataclass(frozen=True)
class Row:
    """One model and way to start it."""

    title: str
    model: str = "tiny"
    tensor_parallel: int = 1
    eager: bool = True
    offline: bool = False


ROWS = {
    "tiny": Row("Llama, a few MB"),
    "qwen3": Row("Qwen3: another architecture", "qwen3"),
    "moe": Row("Qwen3-MoE: a mixture of experts", "moe"),
    "vocab": Row("Llama, a tokenizer of 32,000 entries", "vocab"),
    "large": Row("Llama, 1.8 GB of weights", "large"),
    "two": Row("two workers", tensor_parallel=2),
    "compiled": Row("not eager, from a warm compile cache", eager=False),
    "offline": Row("LLM(...) in a script", offline=True),
    "offline-two": Row("LLM(...) with two workers", tensor_parallel=2, offline=True),
}


def reasons(starts: Sequence[Start]) -> list[str]:
    """What the starts' logs say of why they were as stock, each once."""
    said = (line for start in starts for line in start.said)
    return list(dict.fromkeys(line for line in said if any(word in line for word in REASONS)))


def outcome(label: str, stock: Sequence[Start], other: Sequence[Start]) -> str:
    """``faster``, or why it was as stock.  BenchFailed where it was neither."""
    why = "; ".join(reasons(other))
    pairs = zip(stock, other, strict=True)
    faster = all(b.sample["first_token"] < a.sample["first_token"] for a, b in pairs)
    if why:
        return f"as stock ({why})"
    if not faster:
        raise BenchFailed(f"{label} was not faster than stock, and its log does not say why")
    return "faster"


def measure(row: Row, sides: Sequence[Side], options: argparse.Namespace) -> dict[str, Any]:
    """One row: ratios, medians, samples and the outcome."""
    options.model = (options.models / row.model).resolve()
    options.tensor_parallel, options.no_eager = row.tensor_parallel, not row.eager
    if not options.model.is_dir():
        raise BenchFailed(f"no model at {options.model}: run make engine")
    with tempfile.TemporaryDirectory(prefix="cfac-breadth-") as name:
        folder = Path(name)
        kind = Offline if row.offline else Server
        starts = Bench(kind, LAST, folder, common_options(options, folder))
        found = starts.rounds(sides, options.n)
    label = sides[-1].label
    samples = {side: [one.sample for one in own] for side, own in found.items()}
    return {
        "title": row.title,
        "settings": {
            "model": row.model,
            "tensor_parallel": row.tensor_parallel,
            "eager": row.eager,
            "offline": row.offline,
        },
        "outcome": outcome(label, found[STOCK], found[label]),
        "summary": summarize(samples),
        "samples": samples,
    }


def show(rows: dict[str, dict[str, Any]], label: str) -> str:
    """A line per row: medians of the time to first token, their ratio, and the outcome."""
    lines = [["row", STOCK, label, "ratio", "interval", "outcome"]]
    for row in rows.values():
        summary = row["summary"]
        ratio = summary["ratio"][label]["first_token"]
        times = [f"{summary[side]['first_token']:.2f} s" for side in (STOCK, label)]
        interval = f"{ratio['low']:.3f} to {ratio['high']:.3f}" if ratio["confidence"] else ""
        lines.append([row["title"], *times, f"{ratio['median']:.3f}", interval, row["outcome"]])
    return table(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--engine", type=Path, required=True, help="made by setup_engine.py")
    parser.add_argument("--models", type=Path, required=True, help="the folder of all models")
    parser.add_argument("--spec", type=labelled, default=labelled(str(SPECS[-1])),
                        metavar="[LABEL=]PATH", help="default: the fast start")  # fmt: skip
    parser.add_argument("--row", action="append", choices=ROWS, help="default: all of them")
    parser.add_argument("-n", type=int, default=3, help="measured starts of each side")
    parser.add_argument("--json", type=Path, help="where the samples go; default: build/bench")
    options = parser.parse_args()
    options.engine = options.engine.resolve()
    label, spec = options.spec
    if options.n < 1:
        parser.error("-n is 1 at least")
    found: dict[str, dict[str, Any]] = {}
    with bench():
        OUT.mkdir(parents=True, exist_ok=True)
        sides = [Side(STOCK), patched(options.engine, label, spec, install_cfac(OUT / "site"))]
        for name in options.row or ROWS:
            print(f"-- {name}", file=sys.stderr, flush=True)
            found[name] = measure(ROWS[name], sides, options)
            how = {"engine": options.engine.name, "spec": spec.name, "n": options.n, "last": LAST}
            # after every row: a later one that fails takes nothing with it
            write_json(options.json or OUT / "breadth.json", {"settings": how, "rows": found})
        print(show(found, label))


if __name__ == "__main__":
    main()
