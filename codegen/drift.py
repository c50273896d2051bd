"""What a new engine does to the anchors of a spec: same, moved, changed, vanished.

Two surveys (or a lock and a survey) are compared site by site:

- ``same``: the function is as it was, at the same line;
- ``moved``: the function is as it was, elsewhere (another line, file or candidate);
- ``changed``: the anchor has a place, but its function is another one now: to be reviewed;
- ``vanished``: the anchor has no place; the nearest functions and statements are listed;
- ``added``: the anchor had no place before, or is new in the spec;
- ``removed``: the spec no longer has the site for this version.

Similarities are ratios of equal statements (difflib), 0 to 1, layout and comments aside.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from cfac.codegen.anchors import Tree
from cfac.codegen.lock import Function, Lock
from cfac.codegen.similar import Candidate, nearest_places, nearest_statements, similarity
from cfac.codegen.survey import Anchor, Survey

Status = Literal["same", "moved", "changed", "vanished", "added", "removed"]
STATUSES: tuple[Status, ...] = ("same", "moved", "changed", "vanished", "added", "removed")
_CONTEXT = 1  # equal statements shown beside those that differ


@dataclass(frozen=True, slots=True)
class Drift:
    """What happened to one anchor.

    ``similarity`` compares the functions (None where only one is known), ``added`` and
    ``removed`` count its statements.  ``statement`` is whether the anchor's own statement
    is as it was, ``order`` names the anchors of the function that it has changed places with.
    """

    status: Status
    old: Anchor | None
    new: Anchor | None
    similarity: float | None = None
    added: int = 0
    removed: int = 0
    statement: bool = True
    order: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()

    @property
    def anchor(self) -> Anchor:
        """The anchor as it is now; as it was, if it is no more."""
        anchor = self.new or self.old
        assert anchor is not None
        return anchor


@dataclass(frozen=True, slots=True)
class Comparison:
    """All anchors of two engine trees, and per changed function the statements that differ."""

    package: str
    before: str | None
    after: str
    anchors: tuple[Drift, ...]
    functions: dict[str, tuple[str, ...]]

    @property
    def fine(self) -> bool:
        """Whether a new patch may be written without a review."""
        return not any(drift.status in ("changed", "vanished") for drift in self.anchors)

    def count(self, status: Status) -> int:
        """How many anchors have this status."""
        return sum(drift.status == status for drift in self.anchors)

    def as_json(self) -> dict[str, Any]:
        """JSON-ready and deterministic."""
        return {
            "engine": {"package": self.package, "old": self.before, "new": self.after},
            "counts": {status: self.count(status) for status in STATUSES},
            "anchors": [_drift_json(drift) for drift in self.anchors],
            "functions": {place: list(lines) for place, lines in self.functions.items()},
        }


def _drift_json(drift: Drift) -> dict[str, Any]:
    name = drift.anchor
    return {
        "transition": name.transition,
        "kind": name.kind,
        "number": name.number,
        "status": drift.status,
        "old": _place_json(drift.old),
        "new": _place_json(drift.new),
        "similarity": None if drift.similarity is None else round(drift.similarity, 3),
        "statements": {"added": drift.added, "removed": drift.removed},
        "same_statement": drift.statement,
        "changed_places_with": list(drift.order),
        "candidates": [asdict(candidate) for candidate in drift.candidates],
    }


def _place_json(anchor: Anchor | None) -> dict[str, Any] | None:
    if anchor is None:
        return None
    names = ("at", "place", "path", "line", "count", "text", "problem")
    return {name: getattr(anchor, name) for name in names}


def reviewed(lock: Lock, package: str) -> Survey:
    """The survey that a lock keeps; of a lock of the first form, fingerprints only."""
    found = Survey(package, lock.version or "unknown", functions=dict(lock.functions))
    names = Anchor.__dataclass_fields__
    for entry in lock.anchors:
        try:
            found.anchors.append(Anchor(**{k: v for k, v in entry.items() if k in names}))
        except TypeError:  # written by hand
            continue
    return found


def compare(old: Survey, new: Survey, tree: Tree | None = None) -> Comparison:
    """Compare two surveys; in ``tree``, the new one, candidates for what vanished are sought."""
    before = {anchor.key: anchor for anchor in old.anchors}
    after = {anchor.key: anchor for anchor in new.anchors}
    swapped = _swapped(before, after)
    drifts: list[Drift] = []
    functions: dict[str, tuple[str, ...]] = {}
    for key in [*after, *(key for key in before if key not in after)]:
        drift = _drift(before.get(key), after.get(key), old, new, tree)
        if drift.status == "changed" and drift.new and drift.old:
            name = drift.new.place
            lines = _differences(old.functions.get(drift.old.place), new.functions.get(name))
            functions[name] = lines
            drift = replace(drift, order=tuple(swapped.get(key, ())))
        drifts.append(drift)
    return Comparison(new.package, old.version, new.version, tuple(drifts), functions)


def _drift(
    was: Anchor | None, now: Anchor | None, old: Survey, new: Survey, tree: Tree | None
) -> Drift:
    if now is None:
        return Drift("removed", was, None)
    if not now.path:
        found: tuple[Candidate, ...] = ()
        if tree is not None:
            found = _candidates(was, now, old, new, tree)
        return Drift("vanished", was, now, candidates=found)
    if was is None or not was.path:
        known = old.functions.get(now.place)
        if was is not None or known is None or old.anchors:
            return Drift("added", was, now)
        was = now  # a lock of the first form: where it was is not known
    one, other = old.functions.get(was.place), new.functions.get(now.place)
    if (one is None) != (other is None):
        return Drift("added", was, now)
    if one is None or other is None or one.fingerprint == other.fingerprint:
        here = (was.place, was.path, was.line)
        status: Status = "same" if here == (now.place, now.path, now.line) else "moved"
        return Drift(status, was, now, 1.0)
    added, removed = _counts(one, other)
    likeness = similarity(one.source, other.source) if one.source else None
    return Drift("changed", was, now, likeness, added, removed, was.text == now.text)


def _candidates(
    was: Anchor | None, now: Anchor, old: Survey, new: Survey, tree: Tree
) -> tuple[Candidate, ...]:
    """Statements of the function like the lost one, then functions like the one it was in."""
    place = was.place if was is not None and was.path else now.place
    text = was.text if was is not None and was.path else now.text
    known = old.functions.get(place)
    found: list[Candidate] = []
    if text:
        found += nearest_statements(tree, now.place, text)
    if now.place not in new.functions or not found:
        found += nearest_places(tree, place, known.source if known else (), text)
    return tuple(found)


def _counts(one: Function, other: Function) -> tuple[int, int]:
    matcher = difflib.SequenceMatcher(None, one.source, other.source, autojunk=False)
    added = removed = 0
    for tag, i1, i2, j1, j2 in matcher.get_opcodes() if one.source else ():
        if tag != "equal":
            removed += i2 - i1
            added += j2 - j1
    return added, removed


def _differences(one: Function | None, other: Function | None) -> tuple[str, ...]:
    """A unified diff of statements, without its header."""
    if one is None or other is None or not one.source:
        return ()
    lines = difflib.unified_diff(one.source, other.source, lineterm="", n=_CONTEXT)
    return tuple(list(lines)[2:])


def _swapped(
    before: dict[tuple[str, str, int], Anchor], after: dict[tuple[str, str, int], Anchor]
) -> dict[tuple[str, str, int], list[str]]:
    """Anchors of one function, before and now, that stand in another order than they did."""
    found: dict[tuple[str, str, int], list[str]] = {}
    both = [key for key, anchor in after.items() if anchor.path and key in before]
    for k, one in enumerate(both):
        for other in both[k + 1 :]:
            a, b, c, d = before[one], before[other], after[one], after[other]
            if a.place != b.place or c.place != d.place or not (a.path and b.path):
                continue
            if (a.line < b.line and c.line > d.line) or (a.line > b.line and c.line < d.line):
                found.setdefault(one, []).append(f"{d.transition} {d.kind}")
                found.setdefault(other, []).append(f"{c.transition} {c.kind}")
    return found
