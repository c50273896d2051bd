"""The lock file: what was reviewed of every engine function that a patch touches.

It keeps each function's fingerprint and its source without layout and comments, and
where each anchor was, so that a later version can be explained against it.  A function
that changed since its anchor was reviewed is a warning until it is accepted.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cfac.codegen.places import DEFS, Def
from cfac.compiler.diagnostics import Diagnostics, Span

LOCK_VERSION = 2
_DROPPED = {"ctx", "type_comment", "kind", "type_ignores"}


@dataclass(frozen=True, slots=True)
class Function:
    """A function (or module body): its fingerprint, its statements, where it begins.

    ``source`` is empty where only the fingerprint is known (a lock of the first form).
    """

    fingerprint: str
    source: tuple[str, ...] = ()
    path: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Touched:
    """A function (or module body) that the patch touches."""

    place: str
    function: Function
    span: Span


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file that was read.  ``anchors`` are as they were written."""

    version: str | None
    functions: Mapping[str, Function]
    anchors: Sequence[Mapping[str, Any]]


def fingerprint(scope: ast.AST) -> str:
    """SHA-256 of a scope's tree without positions and docstrings, in every Python the same.

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
            if name == "body" and has_docstring(node):
                value = value[1:]
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


def has_docstring(node: ast.AST) -> bool:
    """Whether the first statement of a module, class or function is its docstring."""
    if not isinstance(node, ast.Module | Def) or not node.body:
        return False
    first = node.body[0]
    value = first.value if isinstance(first, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def renew(
    old: str | None,
    name: str,
    package: str,
    version: str,
    touched: list[Touched],
    diagnostics: Diagnostics,
    *,
    accept: bool = False,
    anchors: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The lock's new text.  Where a function differs, the old lock is kept unless ``accept``."""
    known = read_lock(old)
    was = known.version
    changed = [
        e
        for e in touched
        if e.place in known.functions
        and known.functions[e.place].fingerprint != e.function.fingerprint
    ]
    if changed and not accept and old is not None:
        versions = "" if was == version else f" ({package} {was or 'unknown'} -> {version})"
        for entry in {e.place: e for e in changed}.values():
            diagnostics.warning(
                "CF413",
                f"{entry.place} changed since its anchor was reviewed{versions}: fingerprint "
                f"{known.functions[entry.place].fingerprint[:16]} -> "
                f"{entry.function.fingerprint[:16]}",
                entry.span,
                help="look at the function, then renew the lock with --accept",
            )
        return old
    lock = {
        "anchors": list(anchors),
        "cfac-lock": LOCK_VERSION,
        "engine": {"package": package, "version": version},
        "functions": {e.place: _entry(e, known.functions.get(e.place)) for e in touched},
        "spec": name,
    }
    return json.dumps(lock, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _entry(entry: Touched, known: Function | None) -> dict[str, Any]:
    """What the lock says of a function; one that is the same keeps its text.

    The text is ``ast.unparse``'s, which differs a little between versions of Python.
    """
    new = entry.function
    same = known is not None and known.fingerprint == new.fingerprint and known.source
    source = known.source if known is not None and same else new.source
    return {
        "fingerprint": new.fingerprint,
        "line": new.line,
        "path": new.path,
        "source": list(source),
    }


def read_lock(text: str | None) -> Lock:
    """The functions, anchors and engine version of a lock; a broken lock knows nothing."""
    try:
        lock = json.loads(text or "{}")
        functions = {str(k): _function(v) for k, v in lock.get("functions", {}).items()}
        anchors = [dict(anchor) for anchor in lock.get("anchors", [])]
        return Lock(lock.get("engine", {}).get("version"), functions, anchors)
    except (ValueError, AttributeError, TypeError):
        return Lock(None, {}, ())


def _function(value: Any) -> Function:
    if isinstance(value, str):
        return Function(value)
    source = tuple(str(line) for line in value.get("source", ()))
    return Function(str(value["fingerprint"]), source, str(value["path"]), int(value["line"]))
