"""Switching between two models of a real vLLM: how long no request could be served.

``python examples/bench/switching.py --engine build/engine/vllm-0.32.0 --model
build/models/tiny --other build/models/qwen3 -n 5`` switches to and fro in three ways,
interleaved, n times each:

- ``stop-start``: the stock engine is stopped, then the other one started;
- ``switching``: the new model starts while the old one serves (model-switching.yaml);
- ``together``: the same, with the fast start and the chunk loader (one patch of
  fast-start.yaml, model-switching.yaml and tensor-loading.yaml; ``--load-format cfac``).

The *stall* is from when the old model takes no more requests to the first answer of the new
one, as a client saw it who had asked for it from the switch's begin.  Another client asks the
old model again and again until it is refused as leaving; any other answer fails the bench,
and so does an answer of either model that is not what it always answers.  One switch of each
way comes first and is not measured: it fills the caches and gives the history its first
record.  ``--timeline FILE.svg`` draws each way's middle switch, as the paper's Figure 6.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sides import OUT, ROOT, bench, install_cfac, patched_copy
from stats import medians, table, typical_ratio, write_json
from switching_run import Chain, Switched, Way, engine_command

SPECS = ROOT / "specs" / "vllm"
SWITCHING = SPECS / "model-switching.yaml"
STOCK = "stop-start"
#: figure -> (title, unit, how it is printed)
FIGURES = {
    "stall": ("stall: old takes no more to first answer of new", "s", ".2f"),
    "total": ("new model's start to its first answer", "s", ".2f"),
    "served": ("of which the old model served", "s", ".2f"),
    "freed": ("old model's drain, end and free memory", "s", ".2f"),
    "waited": ("new model waited for memory", "s", ".2f"),
    "early": ("old model stopped too early", "s", ".2f"),
    "others": ("CPUs that others used", "", ".2f"),
}


def make_ways(engine: Path) -> list[Way]:
    """The three ways, their engines compiled and patched now."""
    site = install_cfac(OUT / "site")
    together = [SPECS / "fast-start.yaml", SWITCHING, SPECS / "tensor-loading.yaml"]
    ways = [Way(STOCK, None, {"PYTHONPATH": ""})]
    for label, specs in (("switching", [SWITCHING]), ("together", together)):
        folder = OUT / label
        folder.mkdir(parents=True, exist_ok=True)
        package, _ = patched_copy(engine, specs, folder)
        options = ["--load-format", "cfac"] if label == "together" else []
        ways.append(Way(label, SWITCHING, {"PYTHONPATH": f"{package}:{site}"}, options))
    return ways


def rounds(chain: Chain, ways: Sequence[Way], count: int) -> dict[str, list[Switched]]:
    """``count`` rounds of all ways, after one switch of each that is not kept."""
    chain.begin(ways[0])
    found: dict[str, list[Switched]] = {way.label: [] for way in ways}
    for number in range(-1, count):
        # every other round the other way round: each way switches to both models
        for way in ways if number % 2 else reversed(ways):
            switched = chain.switch(way)
            print(way.label, switched.new, switched.sample, file=sys.stderr, flush=True)
            if number >= 0:
                found[way.label].append(switched)
    return found


def summarize(samples: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians of all ways, and each way's stall / that of stop, then start."""
    result: dict[str, Any] = {label: medians(found) for label, found in samples.items()}
    result["ratio"] = {}
    for label, found in samples.items():
        if label != STOCK:
            pairs = [(a["stall"], b["stall"]) for a, b in zip(samples[STOCK], found, strict=True)]
            result["ratio"][label] = typical_ratio(pairs)._asdict()
    return result


def show(summary: dict[str, Any], samples: dict[str, list[dict[str, float]]]) -> str:
    """A row for each figure, a column for each way."""
    rows = [[f"median of {len(samples[STOCK])}", *samples]]
    for key, (title, unit, form) in FIGURES.items():
        rows.append([title, *(f"{summary[label][key]:{form}} {unit}".strip() for label in samples)])
    each = [["stall of each, s", *("" for _ in samples)]]
    each[0][1:] = [" ".join(f"{one['stall']:.1f}" for one in samples[label]) for label in samples]
    ratios = ["stall / stop-start"]
    for label in samples:
        one = summary["ratio"].get(label)
        ratios.append(f"{one['median']:.2f} ({one['low']:.2f}-{one['high']:.2f})" if one else "1")
    level = min((one["confidence"] for one in summary["ratio"].values()), default=0.0)
    return table([*rows, *each, ratios]) + f"\nintervals: {level:.0%} confidence"


def draw(found: dict[str, list[Switched]], path: Path) -> None:
    """Each way's middle switch."""
    from cfac.compiler.draw import timeline_svg

    pictures = []
    for label, switches in found.items():
        ordered = sorted(switches, key=lambda one: one.sample["stall"])
        pictures.append(picture(label, ordered[(len(ordered) - 1) // 2]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(timeline_svg.render(pictures).encode())


def picture(label: str, switched: Switched) -> Any:
    """One switch as a timeline: the old model's lane, the new one's, and the clients'."""
    from cfac.compiler.draw.timeline import Bar, Lane, Timeline

    at = {name: event.get("at", 0.0) for name, event in switched.events.items()}
    end = switched.sample["total"]
    old = Lane("old", "old", None)
    old.bars = [
        Bar("old", "Active", 0.0, at["closed"]),
        Bar("old", "GMemFreed", at["closed"], at["freed"]),
    ]
    new = Lane("new", "new", None)
    if "env_ready" in at:
        begin = max(at["freed"], at["env_ready"])
        new.bars = [
            Bar("new", "EnvReady", 0.0, at["env_ready"]),
            Bar("new", "Active", begin, at["active"], waited=at["env_ready"], gate="old.GMemFreed"),
        ]
    else:
        new.bars = [Bar("new", "Active", at["started"], at["active"])]
    clients = Lane("no answer", "no answer", None)
    clients.bars = [Bar("no answer", "stall", at["closed"], end, kind="aux")]
    lanes = [old, new, clients]
    states = sum(len(lane.bars) for lane in lanes)
    return Timeline(label, label, f"switch to {switched.new}", lanes, [], end, end, states, [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", type=Path, required=True, help="made by setup_engine.py")
    parser.add_argument("--model", type=Path, required=True, help="made by make_model.py")
    parser.add_argument("--other", type=Path, required=True, help="the model to switch to")
    parser.add_argument("-n", type=int, default=5, help="switches of each way")
    parser.add_argument("--json", type=Path, default=OUT / "switching.json")
    parser.add_argument("--timeline", type=Path, metavar="SVG")
    arguments = parser.parse_args()
    for name in ("engine", "model", "other"):
        if not getattr(arguments, name).exists():
            parser.error(f"no {name} at {getattr(arguments, name)}: run make engine")
    engine = arguments.engine.resolve()
    models = {path.name: path.resolve() for path in (arguments.model, arguments.other)}
    if len(models) < 2:
        parser.error("the two models need folders of different names")
    with bench(), tempfile.TemporaryDirectory(prefix="cfac-switching-") as folder:
        ways = make_ways(engine)
        chain = Chain(Path(folder), engine_command(engine, models), list(models))
        try:
            found = rounds(chain, ways, arguments.n)
        finally:
            chain.end()
    samples = {label: [one.sample for one in own] for label, own in found.items()}
    summary = summarize(samples)
    print(show(summary, samples))
    write_json(arguments.json, {"summary": summary, "samples": samples, "models": list(models)})
    if arguments.timeline:
        draw(found, arguments.timeline)


if __name__ == "__main__":
    main()
