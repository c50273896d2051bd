"""How the compiler scales: load, check, merge and plan of large irregular graphs.

``python examples/bench/compiler.py`` makes specs of 1,000 to 1,000,000 transitions with
three waits for each on average, none of them alike: components of 1 to 20 states, waits
for any transition that is earlier in a random order, merged groups.  Each size
is measured in a process of its own: CPU seconds of each pass, and the peak memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stats import table, write_json

from cfac.compiler.check import check
from cfac.compiler.diagnostics import Span
from cfac.compiler.load import load
from cfac.compiler.merge import merged
from cfac.compiler.model import Component, Dependency, Index, MergeGroup, Ref, Spec, State
from cfac.compiler.plan import compile_plan, render_plan
from cfac.compiler.yamlpos import MAX_BYTES

ROOT = Path(__file__).resolve().parents[2]
SIZES = (1_000, 10_000, 100_000, 1_000_000)
PASSES = ("load", "check", "merge", "plan")
WAITS = 3  # for each transition, on average
_AT = Span("generated.yaml", 1, 1, 2)


def irregular(size: int, seed: int = 1) -> Spec:
    """A spec of ``size`` transitions and three times as many waits, without a cycle.

    The transitions get a random order in which every component's own order holds; each
    waits for up to six that are earlier in it, near ones and far ones alike.
    """
    rng = random.Random(seed)
    lengths: list[int] = []
    left = size
    while left:
        lengths.append(min(left, rng.randint(1, 20)))
        left -= lengths[-1]
    turns = [c for c, length in enumerate(lengths) for _ in range(length)]
    rng.shuffle(turns)
    names: list[tuple[str, str]] = []  # in the random order
    counts = [0] * len(lengths)
    for turn in turns:
        counts[turn] += 1
        names.append((f"c{turn}", f"S{counts[turn]}"))
    index = Index()
    states: dict[str, list[State]] = {f"c{c}": [State("S0", _AT)] for c in range(len(lengths))}
    for place, (component, state) in enumerate(names):
        after: dict[int, Dependency] = {}
        for _ in range(rng.randint(0, 2 * WAITS) if place else 0):
            far = rng.random() < 0.5
            at = rng.randrange(place) if far else max(0, place - rng.randint(1, 50))
            if names[at][0] != component:
                after[at] = Dependency(Ref(*names[at], index, _AT))
        cost = rng.random() if rng.random() < 0.2 else None
        states[component].append(State(state, _AT, after=tuple(after.values()), cost=cost))
    components = {name: Component(name, _AT, tuple(own)) for name, own in states.items()}
    return Spec("generated", "generated.yaml", _AT, components, merges=_groups(names, rng))


def _groups(names: list[tuple[str, str]], rng: random.Random) -> tuple[MergeGroup, ...]:
    """One transition in ten is merged, with those that are next in the random order."""
    found: list[MergeGroup] = []
    place = 0
    while place + 5 < len(names):
        if rng.random() < 0.025:
            of = tuple(Ref(*name, Index(), _AT) for name in names[place : place + 4])
            found.append(MergeGroup(f"g{len(found)}", of, _AT))
            place += 4
        else:
            place += 1
    return tuple(found)


def document(spec: Spec) -> str:
    """The spec as YAML, without its groups."""
    out = ["apiVersion: cfac/v1", "kind: StartupGraph", f"name: {spec.name}", "components:"]
    for component in spec.components.values():
        out += [f"  {component.name}:", "    states:"]
        for state in component.states:
            options = [f"cost: {state.cost:.6f}s"] if state.cost else []
            if state.after:
                options.append(f"after: [{', '.join(str(d.ref) for d in state.after)}]")
            name = f"{{{state.name}: {{{', '.join(options)}}}}}" if options else state.name
            out.append(f"      - {name}")
    return "\n".join(out) + "\n"


def load_time(spec: Spec) -> float | None:
    """CPU seconds to load the spec from YAML; None if the file would be too large."""
    text = document(spec)
    if len(text) > MAX_BYTES:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "generated.yaml")
        path.write_text(text)
        del text
        start = time.process_time()
        loaded, diagnostics = load(path)
        seconds = time.process_time() - start
    assert loaded is not None and not diagnostics.errors
    assert loaded.components.keys() == spec.components.keys()
    return seconds


def measure(size: int) -> dict[str, Any]:
    """CPU seconds of each pass for one size, and the peak memory of this process in bytes."""
    spec = irregular(size)
    waits = sum(len(state.after) for _, state in spec.transitions())
    gc.collect()
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds: dict[str, float | None] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        found = work()
        seconds[name] = time.process_time() - start
        return found

    result = timed("check", lambda: check(spec))
    assert result.order is not None
    assert [item for item in result.diagnostics if item.severity == "error"] == []
    del result
    timed("merge", lambda: merged(spec))
    plan = timed("plan", lambda: render_plan(compile_plan(spec)))
    plan_bytes = len(plan)
    del plan
    gc.collect()
    seconds["load"] = load_time(spec)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "transitions": size,
        "waits": waits,
        "groups": len(spec.merges),
        "cpu_seconds": {name: value and round(value, 3) for name, value in seconds.items()},
        "peak_bytes": peak,
        "spec_bytes": base,
        "plan_bytes": plan_bytes,
    }


def alone(size: int) -> dict[str, Any]:
    """``measure`` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, "--one", str(size)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def total(run: dict[str, Any]) -> float:
    """CPU seconds of all passes but the load, which the largest sizes do not have."""
    return sum(value for name, value in run["cpu_seconds"].items() if name != "load")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="transitions")
    parser.add_argument("-n", type=int, default=1, help="runs of each size; the fastest counts")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    runs = [[alone(size) for _ in range(arguments.n)] for size in arguments.sizes]
    best = [min(found, key=lambda run: total(run)) for found in runs]
    head = ["transitions", "waits", *(f"{name} (s)" for name in PASSES)]
    rows = [[*head, "but load, per transition (us)", "peak memory (MiB)"]]
    for run in best:
        seconds = run["cpu_seconds"]
        rows.append(
            [
                f"{run['transitions']:,}",
                f"{run['waits']:,}",
                *("-" if seconds[name] is None else f"{seconds[name]:.2f}" for name in PASSES),
                f"{1e6 * total(run) / run['transitions']:.0f}",
                f"{run['peak_bytes'] / 2**20:,.0f}",
            ]
        )
    print(table(rows))
    write_json(arguments.json, {"n": arguments.n, "best": best, "runs": runs})


if __name__ == "__main__":
    main()
