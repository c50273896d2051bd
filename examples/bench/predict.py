"""A prediction against what was measured: the paper's comparison, for one spec.

``python examples/bench/predict.py --spec specs/vllm/fast-start.yaml --stock RUN --measured
RUN`` takes costs from runs of the engine's own schedule (CFAC_OBSERVE=1), feeds them into
the spec's graph, and compares with runs that followed the spec: the chain's sum, the
longest path (paper section 4.1), alone and with where the engine starts processes, and
the graph on a number of cores.  Both options may be
repeated; medians count.  What the prediction assumes: docs/analyze.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stats import table, write_json

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # cfac of this checkout, where none is installed

from cfac.compiler.analyze import (  # noqa: E402
    Analysis,
    Query,
    SelectionError,
    analyze,
    record,
    total,
)
from cfac.compiler.analyze.select import duration  # noqa: E402
from cfac.compiler.api import check, load  # noqa: E402
from cfac.compiler.model import Spec  # noqa: E402
from cfac.compiler.render import emit  # noqa: E402
from cfac.runtime.errors import ChannelError  # noqa: E402
from cfac.runtime.history import History, find_run, read_run  # noqa: E402

NS = 1e9


def checked(path: Path) -> Spec:
    """The spec, if it has no errors; else they are printed, and the script exits."""
    spec, diagnostics = load(path)
    if spec is not None:
        diagnostics.extend(check(spec).diagnostics)
    if spec is None or diagnostics.errors:
        emit(diagnostics.sorted(), spec.sources if spec else None)
        sys.exit(1)
    return spec


def runs(names: Sequence[str], kind: str) -> list[History]:
    """Recorded runs that are complete; the script exits with the reason if one is not."""
    found = [read_run(find_run(name)) for name in names]
    for run in record(found).runs:
        if run.missing:
            sys.exit(f"{kind} run {run.id} did not reach {', '.join(run.missing)}")
        if run.observe == (kind == "measured"):
            how = "with" if run.observe else "without"
            print(f"note: {kind} run {run.id} was recorded {how} CFAC_OBSERVE=1", file=sys.stderr)
    return found


def figures(found: Analysis, stock: float, measured: float) -> dict[str, dict[str, float | None]]:
    """name -> seconds, and the error against what was measured, in percent."""
    pairs: list[tuple[str, int | None, float]] = [
        ("T_chain, predicted", found.times.chain, stock),
        ("T_CFA, declared dependencies alone", found.declared, measured),
        ("T_CFA, cores without limit", found.times.predicted, measured),
    ]
    if found.on_cores is not None:
        limited = found.on_cores.limited
        name = f"T_CFA, {limited.cores} cores"
        pairs += [
            (f"{name}, list schedule", limited.end, measured),
            (f"{name}, shared", found.on_cores.shared.predicted, measured),
            (f"{name}, at least", limited.bound, measured),
        ]
    known = [(name, time / NS, real) for name, time, real in pairs if time is not None]
    return {
        name: {"seconds": time, "error_percent": 100 * (time / real - 1) if real else None}
        for name, time, real in known
    }


def show(stock: float, measured: float, predicted: dict[str, dict[str, float | None]]) -> str:
    """A row per figure; errors are those against the figure that was measured."""
    rows = [["", "seconds", "error"]]
    rows += [["stock, recorded", f"{stock:.3f}", ""], ["spec, measured", f"{measured:.3f}", ""]]
    for name, figure in predicted.items():
        error = figure["error_percent"]
        text = "" if error is None else f"{error:+.1f}%"
        rows.append([name, f"{figure['seconds']:.3f}", text])
    return table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--spec", type=Path, required=True, help="what the measured runs followed")
    parser.add_argument("--stock", action="append", required=True, metavar="RUN")
    parser.add_argument("--measured", action="append", required=True, metavar="RUN")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="TRANSITION=TIME")
    parser.add_argument("--no-core", action="append", default=[], metavar="TRANSITION")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    spec = checked(arguments.spec)
    try:
        recorded, followed = runs(arguments.stock, "stock"), runs(arguments.measured, "measured")
        settings = [text.partition("=") for text in arguments.set]
        query = Query(
            recorded=record(recorded),
            settings=tuple((name, duration(time)) for name, _, time in settings),
            cores=arguments.cores,
            coreless=tuple(arguments.no_core),
        )
        found = analyze(spec, query)
    except (ChannelError, OSError, SelectionError) as error:
        sys.exit(str(error))
    stock = statistics.median(total(history) for history in recorded) / NS
    measured = statistics.median(total(history) for history in followed) / NS
    predicted = figures(found, stock, measured)
    print(show(stock, measured, predicted))
    for text in [f"no cost, counted as 0: {name}" for name in found.missing] + found.notes:
        print(f"note: {text}")
    result: dict[str, Any] = {"spec": spec.name, "stock": stock, "measured": measured}
    write_json(arguments.json, {**result, "predicted": predicted, "notes": found.notes})


if __name__ == "__main__":
    main()
