"""A comparison of two engine trees as text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from cfac.codegen.drift import STATUSES, Comparison, Drift
from cfac.codegen.survey import Anchor

_LINES = 24  # of one function's differences
_WIDTH = 150
_NAME = 40  # longer names push what follows aside


def render_drift(found: Comparison, *, all_anchors: bool = True) -> str:
    """One line per anchor, then why; per changed function the statements that differ."""
    versions = f"{found.before or 'unknown'} -> {found.after}"
    counts = ", ".join(f"{found.count(s)} {s}" for s in STATUSES if found.count(s)) or "none"
    out = [f"{found.package} {versions}: {len(found.anchors)} anchors: {counts}"]
    order = sorted(found.anchors, key=lambda drift: STATUSES.index(drift.status))
    width = min(max((len(_name(d.anchor)) for d in order), default=0), _NAME)
    for drift in order:
        if drift.status != "same" or all_anchors:
            out.append(f"{drift.status:8} {_name(drift.anchor):{width}}  {_where(drift)}")
            out += [f"         {line}" for line in _details(drift)]
    for place, lines in found.functions.items():
        out += ["", f"{place}: {_summary(found, place)}", *_shown(lines)]
    return "\n".join(out) + "\n"


def _name(anchor: Anchor) -> str:
    number = f" ({anchor.number + 1})" if anchor.number else ""
    return f"{anchor.transition} {anchor.kind}{number}"


def _where(drift: Drift) -> str:
    old, new = drift.old, drift.new
    if new is None or not new.path:
        return _at(old) if old is not None and old.path else drift.anchor.place
    if old is None or not old.path or (old.path, old.line) == (new.path, new.line):
        return _at(new)
    if old.path == new.path:
        return f"{old.path}:{old.line} -> {new.line}"
    return f"{old.path}:{old.line} -> {new.path}:{new.line}"


def _at(anchor: Anchor) -> str:
    return f"{anchor.path}:{anchor.line}"


def _details(drift: Drift) -> Iterator[str]:
    old, new = drift.old, drift.new
    if old and new and old.path and new.path and old.place != new.place:
        yield f"{old.place} -> {new.place}"
    if drift.status == "changed":
        if not drift.statement and old and new:
            yield f"at: {_cut(old.text)}"
            yield f"now at: {_cut(new.text)}"
        if old and new and old.count != new.count and old.count:
            yield f"{new.count} places, {old.count} before"
        for other in drift.order:
            yield f"stands on the other side of {other} now"
    if drift.status == "vanished":
        if old and old.path and old.text:
            yield f"was at: {_cut(old.text)}"
        yield drift.anchor.problem
        for c in drift.candidates:
            name = f"{c.place}" if c.kind == "function" else _cut(c.text)
            yield f"nearest {c.kind} ({c.similarity:.0%}): {c.path}:{c.line}: {name}"


def _summary(found: Comparison, place: str) -> str:
    drift = next(d for d in found.anchors if d.status == "changed" and d.anchor.place == place)
    if drift.similarity is None:
        return "changed; how it was is not in the lock"
    return (
        f"{drift.similarity:.0%} of its statements are the same, {drift.added} added, "
        f"{drift.removed} removed"
    )


def _shown(lines: tuple[str, ...]) -> Iterator[str]:
    for k, line in enumerate(lines[:_LINES]):
        yield f"  {_window(line, lines[max(k - 1, 0) : k + 2])}"
    if len(lines) > _LINES:
        yield f"  ... {len(lines) - _LINES} more lines (all with --format json)"


def _window(line: str, near: tuple[str, ...]) -> str:
    """A line cut to a width; a long one beside its other version, around where they part."""
    other = next((n for n in near if n[:1] + line[:1] in ("+-", "-+")), None)
    if len(line) <= _WIDTH or other is None:
        return _cut(line)
    pairs = zip(line[1:], other[1:], strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if common < _WIDTH // 2:
        return _cut(line)
    body = line[1:].lstrip()
    start = common - (len(line) - 1 - len(body)) - _WIDTH // 3
    return f"{line[0]}{' ' * (len(line) - 1 - len(body))}...{_cut(body[max(start, 0) :])}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
