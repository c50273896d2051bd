"""What a prediction assumes that its reader may not: one sentence each."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cfac.compiler.analyze.recorded import Recorded
from cfac.compiler.model import Component, Spec


def notes(
    spec: Spec,
    absent: Collection[str],
    recorded: Recorded | None,
    dropped: bool,
) -> list[str]:
    """The assumptions that matter for this spec and these runs.

    ``dropped``: where the engine starts processes had to be left out.
    """
    present = [c for c in spec.components.values() if c.name not in absent]
    found = list(_forks(present, recorded))
    if dropped:
        found.append(
            "where the engine starts processes contradicts an order marked `schedule: true`: "
            "left out, all processes begin at once"
        )
    if spec.merges and spec.engine is not None:
        found.append(
            "merge groups run as one in `cfac run` only; an engine goes through their members "
            "one by one"
        )
    if recorded is not None:
        found += _runs(recorded)
    return found


def _forks(present: Iterable[Component], recorded: Recorded | None) -> Iterable[str]:
    runs = recorded.runs if recorded is not None else ()
    forks = [
        component.name
        for component in present
        if component.process is not None
        and component.process.strategy.kind == "fork"
        and any(component.name not in run.early for run in runs)
    ]
    if forks:
        yield (
            f"{', '.join(forks)}: forked, but recorded in a process of its own; what is inherited "
            "is counted again, so the prediction is an upper bound (see --set)"
        )


def _runs(recorded: Recorded) -> Iterable[str]:
    for run in recorded.runs:
        if run.missing:
            shown = ", ".join(run.missing[:4]) + (", ..." if len(run.missing) > 4 else "")
            yield f"run {run.id} did not reach {shown}"
    first = recorded.runs[0] if recorded.runs else None
    for run in recorded.runs[1:]:
        assert first is not None
        if run.params != first.params:
            yield f"run {run.id} has other parameters than {first.id}, whose are used"
        if run.early != first.early:
            yield f"run {run.id} was started in another way than {first.id}: their costs differ"
