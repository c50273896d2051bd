"""Cold starts of a real vLLM: stock against any set of specs' patches.

``python examples/bench/coldstart.py --engine build/engine/vllm-0.32.0 --model
build/models/tiny -n 9`` starts each n times, interleaved, and prints per figure the
medians and each side's ratio to stock with its interval.  With ``--spec
specs/vllm/process-tree.yaml`` it tells what the instrumentation alone costs; several
``--spec LABEL=PATH`` are an ablation, a row for each.

Every start is asked the same requests, and every answer's tokens and logprobs must
equal the stock engine's.  One start of each side comes first and is not measured: it
fills the caches of vLLM, of the compiler (``--no-eager``) and of the file system.  A
start that compiles a kernel all the same is reported.  (vLLM 0.32 on a CPU takes the
kernels from its cache but traces the model anew in every start, stock or not: it
cannot load the traced function that it saved.)
``--offline`` measures ``LLM(...)`` in a fresh Python process instead of ``vllm serve``.
``--timeline FILE.svg`` draws the engine's own start, recorded with the process-tree
patch and CFAC_OBSERVE=1, above the last spec's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sides import (
    OBSERVED,
    OUT,
    SPEC,
    STOCK,
    BenchFailed,
    Offline,
    Server,
    Side,
    WrongAnswer,
    add_arguments,
    bench,
    checked,
    common_options,
    make_sides,
    patched,
    settings,
    started,
)
from stats import medians, table, typical_ratio, write_json
from tree import cpu_seconds, machine_seconds, pss_mib

Sample = dict[str, float]

#: figure -> (title, unit, how it is printed)
FIGURES = {
    "first_token": ("time to first token", "s", ".2f"),
    "ready": ("time to /health, or until LLM() returns", "s", ".2f"),
    "cpu": ("CPU-seconds to first token", "s", ".2f"),
    "pss": ("memory of the process tree (PSS)", "MiB", ".0f"),
    "second": ("second request, 24 tokens", "s", ".4f"),
    "logprobs": ("third request, the first with logprobs", "s", ".4f"),
    "last": ("last request, 24 tokens", "s", ".4f"),
}
PROMPTS = ["One two three", "The engine starts", "A worker waits for the handle"]
TOKENS = 24
#: Recorded starts of the engine's own order, of which the middle one is drawn.
OBSERVED_STARTS = 3


@dataclass
class Start:
    """One start: its figures, all its answers in order, and its trace if it has one."""

    sample: Sample
    answers: list[dict[str, Any]]
    #: CLOCK_MONOTONIC in ns: ready, and the first token
    seen: list[int]
    run: Path | None
    #: cfac's own lines of the log
    said: list[str]


def ask(server: Server, number: int, last: int) -> tuple[dict[str, Any], float]:
    """Request ``number`` (1 is the first) and its seconds; most ask for one token only.

    The first two ask for no logprobs, as users do: for the first that does, the engine
    compiles a function.
    """
    prompt = PROMPTS[number % len(PROMPTS)]
    begun = time.monotonic()
    answer = server.complete(prompt, TOKENS if number in {2, last} else 1, logprobs=number > 2)
    return answer, time.monotonic() - begun


def measure(server: Server, last: int) -> Start:
    """Measure a server that was just started, until its request number ``last``."""
    cpu, all_cpu, machine = cpu_seconds(own=False), cpu_seconds(), machine_seconds()
    ready = server.wait_ready()
    answers = [ask(server, 1, last)[0]]
    first = time.monotonic() - server.started
    cpu = cpu_seconds(own=False) - cpu
    others = machine_seconds() - machine - (cpu_seconds() - all_cpu)
    sample = {"first_token": first, "ready": ready, "cpu": cpu, "pss": pss_mib()}
    sample["others"] = max(0.0, others)
    for number in range(2, last + 1):
        answer, seconds = ask(server, number, last)
        answers.append(answer)
        sample |= {2: {"second": seconds}, 3: {"logprobs": seconds}}.get(number, {})
        sample |= {"last": seconds} if number == last else {}
    seen = [round((server.started + seconds) * 1e9) for seconds in (ready, first)]
    lines = (line.partition("cfac: ") for line in server.log.splitlines())
    said = [text for before, found, text in lines if found and not before]
    return Start(sample, answers, seen, server.run_folder(), said)


def compare(label: str, answers: Sequence[dict[str, Any]], expected: Sequence[Any]) -> None:
    """WrongAnswer at the first answer that is not exactly the stock engine's."""
    for number, (answer, stock) in enumerate(zip(answers, expected, strict=True), 1):
        if answer == stock:
            continue
        said, meant = (one.get("tokens", one["text"]) for one in (answer, stock))
        what = f"{label}, request {number}: {said} instead of {meant}"
        if answer.get("tokens") == stock.get("tokens") is not None:
            pairs = zip(answer["logprobs"], stock["logprobs"], strict=True)
            worst = max(abs(a - b) for a, b in pairs)
            what = f"{label}, request {number}: same tokens, logprobs differ by up to {worst:.2g}"
        raise WrongAnswer(what)


class Bench:
    """The starts of one benchmark, each compared with the first of stock."""

    def __init__(
        self,
        kind: type[Server],
        last: int,
        folder: Path,
        common: dict[str, Any],
        runs: Path | None = None,
    ) -> None:
        self.kind, self.last, self.folder, self.common = kind, last, folder, common
        #: where the traces are kept, by side
        self.runs = (runs or folder / "runs").resolve()  # a server has a working folder of its own
        self.expected: list[dict[str, Any]] | None = None
        self.count = 0

    def start(self, side: Side, *, warm: bool = False) -> Start:
        """One start of a side, of which no process is left; of a ``warm`` one no trace is kept."""
        self.count += 1
        traces = self.folder / "warm" if warm else self.runs
        runs, kernels = traces / side.label / str(self.count), self.kernels()
        with started(side, self.kind, **self.common, runs=runs) as server:
            found = measure(server, self.last)
        found.sample["kernels"] = self.kernels() - kernels
        if self.expected is None:
            self.expected = found.answers
        compare(side.label, found.answers, self.expected)
        print(side.label, found.sample, file=sys.stderr, flush=True)
        return found

    def kernels(self) -> int:
        """How many compiled kernels the caches hold."""
        return sum(1 for _ in self.folder.rglob("*.so"))

    def rounds(self, sides: Sequence[Side], count: int) -> dict[str, list[Start]]:
        """``count`` rounds of all sides, after one start of each that is not kept."""
        for side in sides:
            self.start(side, warm=True)
        found: dict[str, list[Start]] = {side.label: [] for side in sides}
        for number in range(count):
            # every other round the other way round: nobody always has the warmer machine
            for side in sides if number % 2 else reversed(sides):
                found[side.label].append(self.start(side))
        return found


def middle(starts: Sequence[Start]) -> Start:
    """The start whose time to first token is the median one (of two the lower)."""
    return sorted(starts, key=lambda one: one.sample["first_token"])[(len(starts) - 1) // 2]


def summarize(samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """Medians of all sides, and each side / stock with its interval, figure by figure."""
    result: dict[str, Any] = {label: medians(found) for label, found in samples.items()}
    result["ratio"] = {label: {} for label in samples if label != STOCK}
    for label, ratios in result["ratio"].items():
        for key in FIGURES:
            pairs = zip(samples[STOCK], samples[label], strict=True)
            ratios[key] = typical_ratio([(a[key], b[key]) for a, b in pairs])._asdict()
    return result


def show(summary: dict[str, Any], samples: dict[str, list[Sample]]) -> str:
    """A row per figure and side, and how quiet the machine was."""
    count = len(samples[STOCK])
    ratios = summary["ratio"]
    level = next((one["first_token"]["confidence"] for one in ratios.values()), 0.0)
    heading = f"{level:.0%} interval" if level else "no interval"
    rows = [[f"median of {count}", "side", "", "side / stock", heading]]
    for key, (title, unit, form) in FIGURES.items():
        for label in samples:
            row = [title if label == STOCK else "", label, f"{summary[label][key]:{form}} {unit}"]
            ratio = ratios.get(label, {}).get(key)
            interval = f"{ratio['low']:.3f} to {ratio['high']:.3f}" if ratio and level else ""
            rows.append([*row, f"{ratio['median']:.3f}" if ratio else "", interval])
    others = sorted(sample["others"] for found in samples.values() for sample in found)
    said = f"other processes used {others[len(others) // 2]:.1f} CPU-seconds during a start"
    said += f" (median), {others[-1]:.1f} at most"
    kernels = sum(sample["kernels"] for found in samples.values() for sample in found)
    if kernels:
        said += f"\nNOT WARM: {kernels:.0f} kernels were compiled in measured starts"
    return f"{table(rows)}\n{said}"


def draw(path: Path, starts: dict[str, Start]) -> None:
    """The starts' traces one above the other, until the client had its first token."""
    from cfac.compiler.draw import timeline, timeline_client, timeline_svg
    from cfac.runtime.history import read_run

    pictures = []
    for label, start in starts.items():
        if start.run is None:
            raise BenchFailed(f"{label} recorded no run to draw")
        picture = timeline.read(read_run(start.run), label)
        steps = list(zip(("Ready", "FirstToken"), start.seen, strict=True))
        timeline_client.add(picture, "client", steps, after="frontend.Ready")
        pictures.append(picture)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(timeline_svg.render(pictures).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add_arguments(parser)
    parser.add_argument("-n", type=int, default=9, help="measured starts of each side")
    parser.add_argument("--last", type=int, default=100, help="the last request's number")
    parser.add_argument("--copy", action="store_true", help="also an unpatched copy of the engine")
    parser.add_argument(
        "--observed",
        nargs="?",
        const=OBSERVED,
        metavar="LABEL",
        help="also the engine's own start, recorded (CFAC_OBSERVE=1); default: observed",
    )
    parser.add_argument(
        "--runs", type=Path, metavar="FOLDER", help="keep the traces there, by side"
    )
    parser.add_argument("--offline", action="store_true", help="LLM(...) instead of vllm serve")
    parser.add_argument("--timeline", type=Path, metavar="SVG", help="draw stock above a spec")
    arguments = checked(parser)
    if arguments.n < 1 or arguments.last < 3:
        parser.error("-n is 1 at least, --last 3")
    with bench(), tempfile.TemporaryDirectory(prefix="cfac-bench-") as name:
        folder = Path(name)
        sides = make_sides(arguments, copy=arguments.copy)
        observe = {"environment": {"CFAC_OBSERVE": "1"}}
        observed = arguments.observed or OBSERVED
        if arguments.observed or arguments.timeline:
            own = patched(arguments.engine, observed, SPEC, OUT / "site", **observe)
        sides[1:1] = [own] if arguments.observed else []
        kind = Offline if arguments.offline else Server
        common = common_options(arguments, folder)
        starts = Bench(kind, arguments.last, folder, common, arguments.runs)
        found = starts.rounds(sides, arguments.n)
        samples = {label: [one.sample for one in own] for label, own in found.items()}
        summary = summarize(samples)
        print(show(summary, samples))
        how = {"n": arguments.n, "offline": arguments.offline, "last": arguments.last}
        json = arguments.json or OUT / "coldstart.json"
        settled = settings(arguments) | how
        write_json(json, {"settings": settled, "summary": summary, "samples": samples})
        if arguments.timeline:
            if not arguments.observed:
                found |= starts.rounds([own], min(arguments.n, OBSERVED_STARTS))
            last = sides[-1].label
            drawn = {STOCK: middle(found[observed]), last: middle(found[last])}
            draw(arguments.timeline, drawn)


if __name__ == "__main__":
    main()
