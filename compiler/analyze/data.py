"""The analysis as JSON-ready data; keys and order are stable, times are seconds."""

from __future__ import annotations

import json
from typing import Any

from cfac.compiler.analyze.analysis import Analysis, Row, Step, Times

VERSION = 1
_NS = 1e9


def render(analysis: Analysis) -> str:
    """The analysis as JSON text."""
    return json.dumps(document(analysis), indent=2, ensure_ascii=False) + "\n"


def document(analysis: Analysis) -> dict[str, Any]:
    """The analysis as JSON-ready data (docs/analyze.md, "JSON")."""
    return {
        "cfac_analysis": VERSION,
        "name": analysis.name,
        "params": analysis.params,
        "runs": [
            {"id": run.id, "plan": run.plan, "observe": run.observe, "total": run.total / _NS}
            for run in analysis.runs
        ],
        **_times(analysis.times),
        "declared": _seconds(analysis.declared),
        "before": None if analysis.before is None else _times(analysis.before),
        "cores": _cores(analysis),
        "critical_path": [_step(analysis.rows, step) for step in analysis.path],
        "blame": [
            {"transition": item.name, "fall": _seconds(item.fall)} for item in analysis.blame
        ],
        "dependencies": [
            {
                "transition": item.name,
                "kind": item.kind,
                "of": item.of,
                "fall": _seconds(item.fall),
            }
            for item in analysis.dependencies
        ],
        "transitions": [_row(row) for row in analysis.rows],
        "without_cost": analysis.missing,
        "notes": analysis.notes,
    }


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / _NS


def ratio(predicted: int, chain: int | None) -> float | None:
    """Predicted over chain; None without a chain, or where it takes no time."""
    return predicted / chain if chain else None


def _times(times: Times) -> dict[str, Any]:
    return {
        "predicted": times.predicted / _NS,
        "chain": _seconds(times.chain),
        "ratio": ratio(times.predicted, times.chain),
    }


def _cores(analysis: Analysis) -> dict[str, Any] | None:
    if analysis.on_cores is None:
        return None
    limited = analysis.on_cores.limited
    return {
        "count": limited.cores,
        "cpu": limited.cpu / _NS,
        "bound": limited.bound / _NS,
        **_times(analysis.on_cores.listed),
        "shared": _times(analysis.on_cores.shared),
    }


def _step(rows: list[Row], step: Step) -> dict[str, Any]:
    row = rows[step.node]
    return {
        "transition": row.name,
        "cost": row.cost / _NS,
        "begin": step.begin / _NS,
        "end": step.end / _NS,
        "why": step.why,
        "of": step.of,
    }


def _row(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"transition": row.name}
    if row.members != (row.name,):
        found["members"] = list(row.members)
    return found | {
        "cost": row.cost / _NS,
        "cost_from": row.source,
        "begin": row.begin / _NS,
        "end": row.end / _NS,
        "slack": row.slack / _NS,
        "blame": row.blame / _NS,
    }
