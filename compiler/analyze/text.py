"""The analysis for the terminal: totals, the critical path, blame, dependencies, slack."""

from __future__ import annotations

from collections.abc import Sequence

from cfac.compiler.analyze.analysis import Analysis, Row, Step, Times
from cfac.compiler.analyze.blame import Fall
from cfac.compiler.analyze.data import ratio
from cfac.compiler.draw.timeline import one_line

#: ns per unit, the unit, and its decimals; by the size of the whole.
_UNITS = ((1e9, "s", 3), (1e6, "ms", 3), (1e3, "us", 3))
#: Transitions shown at each end of a long critical path.
_PATH = 40
#: Replicas of one transition that follow each other are shown together from here up.
_RUN = 4
_HOW = {
    "after": "after",
    "fork": "forked at",
    "prespawn": "prespawned at",
    "start": "started by the engine after",
}
_MORE = "... and {} more (--top)"


class _Clock:
    """Writes all times of one analysis in the same unit."""

    def __init__(self, largest: int) -> None:
        self._unit = next((unit for unit in _UNITS if largest >= unit[0]), _UNITS[-1])
        if not largest:
            self._unit = _UNITS[0]

    def __call__(self, nanoseconds: int) -> str:
        scale, name, decimals = self._unit
        return f"{nanoseconds / scale:.{decimals}f} {name}"


def render(analysis: Analysis, top: int = 10) -> str:
    """The analysis in lines; lists have ``top`` entries at most, a long path its two ends."""
    clock = _Clock(max(analysis.times.predicted, analysis.times.chain or 0))
    lines = [_title(analysis), *_totals(analysis, clock), ""]
    lines += _path(analysis.rows, analysis.path, clock)
    blame = [[item.name, _fall(item, clock)] for item in analysis.blame if item.fall != 0]
    lines += _section("blame: sooner by, if it took no time", blame, top)
    waits = [[_wait(item), _fall(item, clock)] for item in analysis.dependencies if item.fall != 0]
    lines += _section("dependencies: sooner by, without it", waits, top)
    lines += _section("slack: what may take longer, by", _slack(analysis.rows, clock), top)
    lines += [f"note: {note}" for note in analysis.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def warning(missing: Sequence[str], shown: int = 12) -> str | None:
    """The one line about transitions without a cost."""
    if not missing:
        return None
    names = ", ".join(missing[:shown])
    more = f" and {len(missing) - shown} more" if len(missing) > shown else ""
    return f"warning: no cost, counted as 0: {names}{more}"


def _title(analysis: Analysis) -> str:
    params = ", ".join(f"{name}={value}" for name, value in analysis.params.items())
    return one_line(analysis.name + (f" ({params})" if params else ""))


def _totals(analysis: Analysis, clock: _Clock) -> list[str]:
    rows: list[list[str]] = []
    if analysis.runs:
        many = f"median of {len(analysis.runs)} runs: " if len(analysis.runs) > 1 else "run "
        rows.append(["costs", "", many + ", ".join(run.id for run in analysis.runs)])
        for run in analysis.runs:
            how = " with CFAC_OBSERVE=1" if run.observe else ""
            rows.append(["recorded", clock(run.total), f"{run.plan}{how}"])
    rows.append(["predicted", clock(analysis.times.predicted), "longest path, cores without limit"])
    rows += _against("chain", analysis.times, clock, "one class after the other")
    if analysis.declared is not None:
        what = "the declared dependencies alone, whenever the engine starts processes"
        rows.append(["declared", clock(analysis.declared), what])
    if analysis.before is not None:
        text = "without --set and --without"
        rows.append(["before", clock(analysis.before.predicted), f"predicted, {text}"])
        if analysis.before.chain is not None and analysis.before.chain != analysis.times.chain:
            rows.append(["", clock(analysis.before.chain), f"chain, {text}"])
    if analysis.on_cores is not None:
        limited = analysis.on_cores.limited
        name = f"{limited.cores} core" + ("s" if limited.cores > 1 else "")
        least = f"a list schedule; none is below {clock(limited.bound)}"
        rows.append([name, clock(limited.end), least])
        rows += _against("", analysis.on_cores.listed, clock, "the chain likewise")
        shared = analysis.on_cores.shared
        rows.append(["", clock(shared.predicted), f"{name} shared by all who could run"])
        rows += _against("", shared, clock, "the chain likewise")
    return _table(rows)


def _against(name: str, times: Times, clock: _Clock, what: str) -> list[list[str]]:
    if times.chain is None:
        return [[name, "-", "the spec has no chain"]] if name else []
    share = ratio(times.predicted, times.chain)
    text = what if share is None else f"{what}; predicted / chain = {share:.3f}"
    return [[name, clock(times.chain), text]]


def _path(rows: Sequence[Row], path: Sequence[Step], clock: _Clock) -> list[str]:
    shown = [["critical path", "cost", "until", "began"]]
    runs = _runs(rows, path)
    for run in runs:
        name, cost = rows[run[0].node].name, sum(rows[step.node].cost for step in run)
        if len(run) > 1:
            name = f"{name} … {rows[run[-1].node].name}"
        shown.append([name, clock(cost), clock(run[-1].end), _why(run[0])])
    lines = _table(shown, right=(1, 2))
    if len(runs) > 2 * _PATH:
        left = f"... {len(runs) - 2 * _PATH} more (-f json has them)"
        lines[1 + _PATH : -_PATH] = [left]
        runs = [*runs[:_PATH], *runs[-_PATH:]]
    path = [step for run in runs for step in run]
    for row in (rows[step.node] for step in path):
        if row.members != (row.name,):
            lines.append(f"  {row.name}: {', '.join(row.members)}")
    return [*lines, ""]


def _runs(rows: Sequence[Row], path: Sequence[Step]) -> list[list[Step]]:
    """The path with many replicas of one transition in a row taken together."""
    runs: list[list[Step]] = []
    for step in path:
        row = rows[step.node]
        plain = row.members == (row.name,)
        if runs and plain and rows[runs[-1][0].node].label == row.label:
            runs[-1].append(step)
        else:
            runs.append([step])
    return [part for run in runs for part in ([run] if len(run) > _RUN else [[s] for s in run])]


def _why(step: Step) -> str:
    if step.of is None:
        return "at once"
    return "own order" if step.why == "own" else f"{_HOW[step.why]} {step.of}"


def _wait(item: Fall) -> str:
    return f"{item.name} {_HOW[item.kind]} {item.of}"


def _fall(item: Fall, clock: _Clock) -> str:
    return "not computed" if item.fall is None else clock(item.fall)


def _slack(rows: Sequence[Row], clock: _Clock) -> list[list[str]]:
    """The least slack of each transition's replicas, smallest first; none that is critical."""
    least: dict[str, int] = {}
    for row in rows:
        least[row.label] = min(row.slack, least.get(row.label, row.slack))
    found = sorted((slack, name) for name, slack in least.items() if slack)
    return [[name, clock(slack)] for slack, name in found]


def _section(title: str, rows: list[list[str]], top: int) -> list[str]:
    if not rows:
        return []
    lines = [title, *(f"  {line}" for line in _table(rows[:top]))]
    if len(rows) > top:
        lines.append("  " + _MORE.format(len(rows) - top))
    return [*lines, ""]


def _table(rows: Sequence[Sequence[str]], right: Sequence[int] = (1,)) -> list[str]:
    """Rows in columns; those in ``right`` are right aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
