"""Cold starts of a real vLLM: stock against any set of specs' patches.

``python examples/bench/coldstart.py --engine build/engine/vllm-0.32.0 --model
build/models/tiny -n 9`` starts each n times, interleaved, and prints medians of the
time to first token, the CPU-seconds of the process trees and the second request's
time, and each ratio to stock with a 95% interval.  With ``--spec
specs/vllm/process-tree.yaml`` it tells what the instrumentation alone costs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stats import adopt_orphans, cpu_seconds, medians, ratio_interval, table, write_json

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "vllm"))

from prepare import install_cfac, patched_copy  # noqa: E402
from server import Server  # noqa: E402

Sample = dict[str, float]

SPECS = [ROOT / "specs" / "vllm" / f"{name}.yaml" for name in ("process-tree", "fast-start")]
FIGURES = {
    "first_token": "time to first token",
    "cpu": "CPU-seconds to first token",
    "second": "second request, 24 tokens",
}


class WrongAnswer(Exception):
    """A patched engine answered other tokens or logprobs than the stock one."""


def summarize(samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """Medians of all sides, and each side / stock with its interval, figure by figure."""
    result: dict[str, Any] = {label: medians(found) for label, found in samples.items()}
    result["ratio"] = {label: {} for label in samples if label != "stock"}
    for label, ratios in result["ratio"].items():
        for key in samples["stock"][0]:
            both = zip(samples["stock"], samples[label], strict=True)
            ratio, low, high = ratio_interval([(a[key], b[key]) for a, b in both])
            ratios[key] = {"median": ratio, "low": low, "high": high}
    return result


def show(summary: dict[str, Any], count: int) -> str:
    """A row per figure and side."""
    rows = [[f"median of {count}", "side", "seconds", "side / stock", "95% interval"]]
    for key, title in FIGURES.items():
        rows.append([title, "stock", f"{summary['stock'][key]:.2f}", "", ""])
        for label, ratios in summary["ratio"].items():
            ratio = ratios[key]
            interval = f"{ratio['low']:.3f} to {ratio['high']:.3f}"
            seconds = f"{summary[label][key]:.2f}"
            rows.append(["", label, seconds, f"{ratio['median']:.3f}", interval])
    return table(rows)


def measure(answers: list[Any], **options: Any) -> Sample:
    """One start: until the first token, then a second request.  WrongAnswer if it differs."""
    before = cpu_seconds()
    with Server(**options) as server:
        first = server.first_token()
        cpu = cpu_seconds() - before
        begun = time.monotonic()
        answer = server.complete("One two three", 24)
        second = time.monotonic() - begun
    answers.append(answer)
    if answer != answers[0]:
        raise WrongAnswer(f"{answer['tokens']} instead of {answers[0]['tokens']}")
    return {"first_token": first, "cpu": cpu, "second": second}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--engine", type=Path, required=True, help="made by setup_engine.py")
    parser.add_argument("--model", type=Path, required=True, help="made by make_model.py")
    parser.add_argument("--spec", type=Path, action="append", help="default: the shipped ones")
    parser.add_argument("-n", type=int, default=9, help="starts of each")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the samples and medians here")
    arguments = parser.parse_args()
    out = ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    engine = arguments.engine.resolve()
    site = install_cfac(out / "site")
    sides: dict[str, dict[str, Any]] = {"stock": {}}
    for spec in arguments.spec or SPECS:
        (out / spec.stem).mkdir(exist_ok=True)
        package, _ = patched_copy(engine, spec.resolve(), out / spec.stem)
        sides[spec.stem] = {"package": package, "paths": [site]}
    adopt_orphans()
    answers: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        common: dict[str, Any] = {
            "engine": engine,
            "model": arguments.model.resolve(),
            "tensor_parallel": arguments.tensor_parallel,
            "cache": Path(folder) / "cache",
            "runs": Path(folder) / "runs",
        }
        samples: dict[str, list[Sample]] = {label: [] for label in sides}
        for options in sides.values():  # fills vLLM's cache and the page cache
            measure(answers, **common, **options)
        for number in range(arguments.n):
            # every other round the other way round: nobody always has the warmer machine
            for label in sorted(sides, reverse=number % 2 == 0):
                samples[label].append(measure(answers, **common, **sides[label]))
                print(label, samples[label][-1], file=sys.stderr, flush=True)
    summary = summarize(samples)
    print(show(summary, arguments.n))
    result = {"n": arguments.n, "tensor_parallel": arguments.tensor_parallel}
    write_json(arguments.json, {**result, "summary": summary, "samples": samples})


if __name__ == "__main__":
    main()
