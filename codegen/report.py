"""The report of a compilation, in Markdown: where each transition went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cfac.codegen.partial import Loss
from cfac.compiler.model import Spec


@dataclass(frozen=True, slots=True)
class Row:
    """One edit: what was put where.  ``line`` is the line in the unpatched file."""

    transition: str
    kind: str
    at: str
    path: str
    line: int
    place: str
    text: str


def render_report(
    spec: Spec,
    package: str,
    version: str,
    rows: Sequence[Row],
    bound: set[str],
    losses: Sequence[Loss] = (),
) -> str:
    """The report: per transition its sites and edits, and what is left out."""
    declared = [f"{component.name}.{state.name}" for component, state in spec.transitions()]
    starts = [f"{c.name}.{c.states[0].name}" for c in spec.components.values()]
    names = [n for n in starts if any(row.transition == n for row in rows)] + declared
    processes = [row for row in rows if row.transition in spec.components]
    deferred = [row for row in rows if row.transition.startswith("defer:")]
    files = sorted({row.path for row in rows if row.path})
    out = [
        f"# {spec.name}",
        "",
        f"- engine: {package} {version}",
        f"- transitions: {len(declared)} declared, {len(bound & set(declared))} bound",
        f"- edits: {sum(bool(row.path) for row in rows)} in {len(files)} files",
        "",
        "## Transitions",
        "",
        "| transition | kind | at | place | edit |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in names:
        mine = [row for row in rows if row.transition == name]
        if not mine:
            out.append(f"| `{name}` | not bound | | | |")
        out += [_line(row) for row in mine]
    if processes:
        out += ["", "## Processes", "", "| component | kind | at | place | edit |"]
        out += ["| --- | --- | --- | --- | --- |", *(_line(row) for row in processes)]
    if deferred:
        out += ["", "## Deferred", "", "| work | kind | until | place | edit |"]
        out += ["| --- | --- | --- | --- | --- |", *(_line(row) for row in deferred)]
    if losses:
        out += ["", "## Left out", ""]
        out += [f"- {loss.lost}: {loss.because.message}" for loss in losses]
    out += ["", "## Files", "", *(f"- `{path}`" for path in files)]
    return "\n".join(out) + "\n"


def _line(row: Row) -> str:
    where = f"{row.path}:{row.line}<br>`{row.place}`" if row.path else row.place
    edit = "`" + row.text.replace("|", "\\|") + "`" if row.text else "none"
    return f"| `{row.transition}` | {row.kind} | {row.at} | {where} | {edit} |"
