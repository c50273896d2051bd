"""``make demo``: patch a real vLLM, start it beside the stock one, compare, draw.

Compiles a startup spec into a patch, applies it to a copy of the engine, starts stock
and patched servers in turn, and compares completions, logprobs and the time to the
first token.  Then it checks the patched starts' traces against the spec and the
stock order, and writes graph.svg, timeline.html and summary.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from prepare import ROOT, SPEC, CommandFailed, cfac, install_cfac, patched_copy
from server import Server

PROMPTS = ["The engine starts", "One two three", "A worker waits for the handle"]


class DemoFailed(Exception):
    """Something is not as it should be; the message says what."""


def differences(stock: list[dict[str, Any]], patched: list[dict[str, Any]]) -> list[str]:
    """How the patched engine's answers differ from the stock engine's; empty if not at all."""
    found = []
    for prompt, left, right in zip(PROMPTS, stock, patched, strict=True):
        if left["tokens"] != right["tokens"]:
            found.append(f"{prompt!r}: stock says {left['text']!r}, patched {right['text']!r}")
        elif left != right:
            pairs = zip(left["logprobs"], right["logprobs"], strict=True)
            worst = max(abs(a - b) for a, b in pairs)
            found.append(f"{prompt!r}: same tokens, logprobs differ by up to {worst:.2g}")
    return found


def start(label: str, **options: Any) -> tuple[float, list[dict[str, Any]]]:
    """Start a server, ask it; the time to its first token and its answers."""
    print(f"  {label}: starting ...", end=" ", flush=True)
    with Server(**options) as server:
        try:
            seconds = server.first_token()
            answers = [server.complete(prompt) for prompt in PROMPTS]
        except (OSError, RuntimeError) as error:
            raise DemoFailed(f"the {label} server failed: {error}") from error
    print(f"first token after {seconds:.1f} s", flush=True)
    return seconds, answers


def compare(arguments: argparse.Namespace, package: Path, site: Path) -> dict[str, Any]:
    """Interleaved pairs of starts; the times, and the folders of the recorded runs."""
    out = arguments.out
    common: dict[str, Any] = {
        "engine": arguments.engine,
        "model": arguments.model,
        "cache": out / "vllm-cache",
        "runs": out / "runs",
    }
    shutil.rmtree(out / "runs", ignore_errors=True)
    if not (out / "vllm-cache").exists():
        start("stock, not counted: fills vLLM's cache", **common)
    times: dict[str, list[float]] = {"stock": [], "patched": []}
    runs: list[Path] = []
    for number in range(arguments.pairs):
        options = {"stock": {}, "patched": {"package": package, "paths": [site]}}
        answers = {}
        # every other pair the other way round: neither has the warmer machine
        for label in sorted(options, reverse=number % 2 == 0):
            seconds, answers[label] = start(label, **common, **options[label])
            times[label].append(seconds)
        new = {path.parent for path in (out / "runs").glob("*/run.json")} - set(runs)
        if len(new) != 1:
            raise DemoFailed(f"the patched server recorded {len(new)} runs instead of one")
        runs += new
        different = differences(answers["stock"], answers["patched"])
        if different:
            raise DemoFailed("the answers differ:\n  " + "\n  ".join(different))
    return {"times": times, "runs": runs}


def show(times: dict[str, list[float]]) -> None:
    print(f"\n  {'':8}  {'first token, median':>20}  {'starts':>6}")
    for label, found in times.items():
        print(f"  {label:8}  {statistics.median(found):18.2f} s  {len(found):6}")


def demo(arguments: argparse.Namespace) -> None:
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    print(f"1. Compile {arguments.spec.name} for the engine, patch a copy of it")
    package, patch = patched_copy(arguments.engine, arguments.spec, out)
    print(f"  {patch}")
    site = install_cfac(out / "site")
    print("2. Start stock and patched in turn, ask both the same")
    result = compare(arguments, package, site)
    print("3. Did the patched starts follow the spec, and the stock order?")
    for run in result["runs"]:
        print("  " + cfac("trace", "verify", run).strip())
        print("  " + cfac("trace", "verify", "--chain", run).strip())
    cfac("graph", arguments.spec, "-o", out / "graph.svg")
    cfac("trace", "export", result["runs"][-1], "-o", out / "timeline.html")
    summary = {
        "engine": arguments.engine.name,
        "spec": arguments.spec.name,
        "same_answers": True,
        "verified": ["spec", "chain"],
        "first_token_seconds": result["times"],
        "runs": [run.name for run in result["runs"]],
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
    show(result["times"])
    print("  same tokens and logprobs; this spec only observes, so the times should be alike")
    print(f"\n  graph:    {out / 'graph.svg'}\n  timeline: {out / 'timeline.html'}")
    print(f"  figures:  {out / 'summary.json'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--engine", type=Path, required=True, help="made by setup_engine.py")
    parser.add_argument("--model", type=Path, required=True, help="made by make_model.py")
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--pairs", type=int, default=1, help="stock and patched starts each")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "demo")
    arguments = parser.parse_args()
    for name in ("engine", "model", "out", "spec"):
        setattr(arguments, name, getattr(arguments, name).resolve())
    for name in ("engine", "model"):
        if not getattr(arguments, name).exists():
            parser.error(f"no {name} at {getattr(arguments, name)}: run make engine")
    try:
        demo(arguments)
    except (CommandFailed, DemoFailed) as error:
        print(f"\ndemo failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
