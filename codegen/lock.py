"""The lock file: fingerprints of every engine function that a patch touches.

A function that changed since its anchor was reviewed is a warning until the new
fingerprint is accepted.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cfac.codegen.places import DEFS
from cfac.compiler.diagnostics import Diagnostics, Span

LOCK_VERSION = 1
_DROPPED = {"ctx", "type_comment", "kind", "type_ignores"}


@dataclass(frozen=True, slots=True)
class Touched:
    """A function (or module body) that the patch touches."""

    place: str
    fingerprint: str
    span: Span


def fingerprint(scope: ast.AST) -> str:
    """SHA-256 of a scope's tree without positions, the same in every Python version.

    Of a module, what runs at import: the bodies of functions do not count.
    """
    return hashlib.sha256("".join(_dump(scope, isinstance(scope, ast.Module))).encode()).hexdigest()


def _dump(node: object, shallow: bool) -> Iterator[str]:
    if isinstance(node, ast.AST):
        yield type(node).__name__ + "("
        for name, value in ast.iter_fields(node):
            empty = value is None and not isinstance(node, ast.Constant)
            if empty or value == [] or name in _DROPPED:
                continue
            if shallow and name == "body" and isinstance(node, DEFS):
                continue
            yield name + "="
            yield from _dump(value, shallow)
            yield ","
        yield ")"
    elif isinstance(node, list):
        yield "["
        for item in node:
            yield from _dump(item, shallow)
            yield ","
        yield "]"
    else:
        yield repr(node)


def renew(
    old: str | None,
    name: str,
    package: str,
    version: str,
    touched: list[Touched],
    diagnostics: Diagnostics,
    *,
    accept: bool = False,
) -> str:
    """The lock's new text.  Where a function differs, the old lock is kept unless ``accept``."""
    known, was = _read(old)
    new = {entry.place: entry.fingerprint for entry in touched}
    changed = [e for e in touched if known.get(e.place, e.fingerprint) != e.fingerprint]
    if changed and not accept and old is not None:
        versions = "" if was == version else f" ({package} {was or 'unknown'} -> {version})"
        for entry in {e.place: e for e in changed}.values():
            diagnostics.warning(
                "CF413",
                f"{entry.place} changed since its anchor was reviewed{versions}: fingerprint "
                f"{known[entry.place][:16]} -> {entry.fingerprint[:16]}",
                entry.span,
                help="look at the function, then renew the lock with --accept",
            )
        return old
    lock = {
        "cfac-lock": LOCK_VERSION,
        "engine": {"package": package, "version": version},
        "functions": new,
        "spec": name,
    }
    return json.dumps(lock, indent=1, sort_keys=True) + "\n"


def _read(text: str | None) -> tuple[Mapping[str, str], str | None]:
    """The fingerprints and the engine version of a lock; a broken lock knows nothing."""
    try:
        lock = json.loads(text or "{}")
        functions = lock.get("functions", {})
        known = {str(k): str(v) for k, v in functions.items()}
        return known, lock.get("engine", {}).get("version")
    except (ValueError, AttributeError):
        return {}, None
