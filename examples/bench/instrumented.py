"""What the instrumentation costs: time to first token of a patched vLLM against stock.

``python examples/bench/instrumented.py --engine build/engine/vllm-0.32.0 --model
build/models/tiny -n 5`` starts both n times, interleaved, and prints medians,
CPU-seconds of the process trees, and the ratio with a 95% interval.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from stats import adopt_orphans, cpu_seconds, medians, ratio_interval, table, write_json

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "vllm"))

from prepare import SPEC, install_cfac, patched_copy  # noqa: E402
from server import Server  # noqa: E402

Sample = dict[str, float]


def summarize(samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """Medians of both sides, and patched / stock with its interval, figure by figure."""
    result: dict[str, Any] = {label: medians(found) for label, found in samples.items()}
    result["ratio"] = {}
    for key in samples["stock"][0]:
        pairs = [(a[key], b[key]) for a, b in zip(*samples.values(), strict=True)]
        ratio, low, high = ratio_interval(pairs)
        result["ratio"][key] = {"median": ratio, "low": low, "high": high}
    return result


def show(summary: dict[str, Any], count: int) -> str:
    rows = [[f"median of {count}", "stock", "patched", "patched / stock", "95% interval"]]
    for key, title in (("first_token", "time to first token"), ("cpu", "CPU-seconds")):
        ratio = summary["ratio"][key]
        cells = [f"{summary[label][key]:.2f} s" for label in ("stock", "patched")]
        interval = f"{ratio['low']:.3f} to {ratio['high']:.3f}"
        rows.append([title, *cells, f"{ratio['median']:.3f}", interval])
    return table(rows)


def measure(**options: Any) -> Sample:
    """One start: seconds and CPU-seconds of the whole process tree until the first token."""
    before = cpu_seconds()
    with Server(**options) as server:
        seconds = server.first_token()
        return {"first_token": seconds, "cpu": cpu_seconds() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--engine", type=Path, required=True, help="made by setup_engine.py")
    parser.add_argument("--model", type=Path, required=True, help="made by make_model.py")
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("-n", type=int, default=5, help="starts of each")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the samples and medians here")
    arguments = parser.parse_args()
    out = ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    engine = arguments.engine.resolve()
    package, _ = patched_copy(engine, arguments.spec.resolve(), out)
    site = install_cfac(out / "site")
    adopt_orphans()
    with tempfile.TemporaryDirectory() as folder:
        common: dict[str, Any] = {
            "engine": engine,
            "model": arguments.model.resolve(),
            "tensor_parallel": arguments.tensor_parallel,
            "cache": Path(folder) / "cache",
            "runs": Path(folder) / "runs",
        }
        sides: dict[str, dict[str, Any]] = {
            "stock": {},
            "patched": {"package": package, "paths": [site]},
        }
        samples: dict[str, list[Sample]] = {label: [] for label in sides}
        for options in sides.values():  # fills vLLM's cache and the page cache
            measure(**common, **options)
        for number in range(arguments.n):
            # every other pair the other way round: neither has the warmer machine
            for label in sorted(sides, reverse=number % 2 == 0):
                samples[label].append(measure(**common, **sides[label]))
                print(label, samples[label][-1], file=sys.stderr, flush=True)
    summary = summarize(samples)
    print(show(summary, arguments.n))
    write_json(arguments.json, {"n": arguments.n, "summary": summary, "samples": samples})


if __name__ == "__main__":
    main()
