"""Put calls into a source: inserted lines and wrapped callees, then prove the result.

Nothing of the original text is changed or removed.  The result is parsed again and
must equal the original tree plus the edits.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from cfac.codegen.positions import Point
from cfac.codegen.source import Source, check_compiles, parse

RANKS = {"import": -2, "use": -1, "wait": 0, "begin": 1, "publish": 2, "stop": 3}


class EditError(Exception):
    """An edit that cannot be made, or whose result is not what was meant."""


@dataclass(frozen=True, slots=True)
class Insert:
    """A line to insert.  ``code`` is a statement, ``marker`` the comment after it.

    ``order`` is that of the transitions at one point (see :mod:`cfac.codegen.order`).
    """

    point: Point
    code: str
    marker: str
    kind: str
    order: int


@dataclass(frozen=True, slots=True)
class Wrap:
    """A callee to wrap in ``_cfac.replaced``; ``options`` are further arguments' text.

    ``hook`` is the function's name: ``replaced``, ``take``, ``deferred`` or ``later``, or ``start``
    and ``context`` of a process.
    """

    callee: ast.expr
    transition: str
    order: int
    options: str = ""
    hook: str = "replaced"


@dataclass(frozen=True, slots=True)
class Guard:
    """A statement that is to run only ``if`` a condition holds; the statement stays as it is."""

    statement: ast.stmt
    condition: str


@dataclass(frozen=True, slots=True)
class Edited:
    """The new bytes, and the insertions that made them: (offset in the old bytes, bytes)."""

    data: bytes
    splices: tuple[tuple[int, bytes], ...]


def edit(
    source: Source,
    inserts: Sequence[Insert],
    wraps: Sequence[Wrap],
    guards: Sequence[Guard] = (),
) -> Edited:
    """Apply edits to a source; EditError if the result would be wrong.  Uses up the tree."""
    pieces = sorted(
        [*_lines(source, inserts), *_wrappings(source, wraps), *_conditions(source, guards)],
        key=lambda p: p[:2],
    )
    new: list[str] = []
    splices: list[tuple[int, bytes]] = []
    at = done = 0
    for offset, _, text in pieces:
        new += [source.text[at:offset], text]
        try:
            done += len(source.encode(source.text[at:offset]))
            splices.append((len(source.bom) + done, source.encode(text)))
        except UnicodeEncodeError as error:
            raise EditError(f"{source.path}: {text.strip()!r}: {error}") from error
        at = offset
    new.append(source.text[at:])
    text = "".join(new)
    data = source.bom + source.encode(text)
    if data != splice(source.raw, splices):
        raise EditError(f"{source.path}: encoding {source.encoding} is not position-free")
    _prove(source, text, inserts, wraps, guards)
    return Edited(data, tuple(splices))


def splice(data: bytes, splices: Sequence[tuple[int, bytes]]) -> bytes:
    """``data`` with bytes inserted; offsets are those of ``data`` and ascend."""
    parts: list[bytes] = []
    at = 0
    for offset, piece in splices:
        parts += [data[at:offset], piece]
        at = offset
    return b"".join([*parts, data[at:]])


def _sorted(inserts: Sequence[Insert]) -> list[Insert]:
    return sorted(inserts, key=lambda i: (i.point.line, -i.point.depth, i.order, RANKS[i.kind]))


def _lines(source: Source, inserts: Sequence[Insert]) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for k, insert in enumerate(_sorted(inserts)):
        point = insert.point
        line = f"{point.indent}{insert.code}  # {insert.marker}"
        if point.line <= source.lines:
            found.append((source.starts[point.line - 1], k, line + point.eol))
        elif source.text and not source.line(source.lines).endswith(("\r", "\n")):
            found.append((len(source.text), k, point.eol + line))
        else:
            found.append((len(source.text), k, line + point.eol))
    return found


def _wrappings(source: Source, wraps: Sequence[Wrap]) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    base = 1_000_000  # after the lines inserted at the same offset; outer callees open first
    for wrap in wraps:  # of two at one callee, the first is the outer one
        start, end = source.span(wrap.callee)
        opening = f"_cfac.{wrap.hook}({quote(wrap.transition)}, "
        found.append((start, base + len(source.text) - end, opening))
        closing = f", {wrap.options})" if wrap.options else ")"
        found.append((end, base - 1, closing))
    return found


def _conditions(source: Source, guards: Sequence[Guard]) -> list[tuple[int, int, str]]:
    """``if CONDITION: `` before a statement; after the lines inserted at the same offset."""
    return [(source.span(g.statement)[0], 999_999, f"if {g.condition}: ") for g in guards]


def quote(name: str) -> str:
    """A text as a Python literal in double quotes."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _prove(
    source: Source,
    text: str,
    inserts: Sequence[Insert],
    wraps: Sequence[Wrap],
    guards: Sequence[Guard],
) -> None:
    try:
        result = parse(text)
        check_compiles(text, source.path)
    except (SyntaxError, ValueError) as error:
        raise EditError(f"{source.path}: the edited file would not parse: {error}") from error
    wrapped: dict[ast.expr, ast.expr] = {}
    for wrap in reversed(wraps):
        call = parse(f"_cfac.{wrap.hook}({quote(wrap.transition)}, {wrap.options})").body[0]
        assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
        now = wrapped.get(wrap.callee, wrap.callee)
        _exchange(source, wrap.callee, now, call.value)
        call.value.args.append(now)
        wrapped[wrap.callee] = call.value
    for guard in guards:
        condition = ast.parse(guard.condition, mode="eval").body
        _exchange(
            source,
            guard.statement,
            guard.statement,
            ast.If(test=condition, body=[guard.statement], orelse=[]),
        )
    blocks: dict[int, list[tuple[int, int, Insert]]] = {}
    for k, insert in enumerate(_sorted(inserts)):
        blocks.setdefault(id(insert.point.block), []).append((insert.point.index, k, insert))
    for entries in blocks.values():
        for index, _, insert in sorted(entries, key=lambda e: e[:2], reverse=True):
            insert.point.block[index:index] = parse(insert.code).body
    if not _alike(result, source.tree):
        raise EditError(
            f"{source.path}: the edited file does not parse to the original plus the edits"
        )


def _alike(one: ast.AST, other: ast.AST) -> bool:
    """Whether two trees are the same but for their positions, as ``ast.dump`` would show them."""
    pairs: list[tuple[object, object]] = [(one, other)]
    while pairs:
        a, b = pairs.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, ast.AST):
            pairs += [(getattr(a, name, None), getattr(b, name, None)) for name in a._fields]
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs += zip(a, b, strict=True)
        elif a is not b and repr(a) != repr(b):  # 0.0 is not -0.0
            return False
    return True


def _exchange(source: Source, original: ast.AST, now: ast.AST, new: ast.AST) -> None:
    """Put ``new`` where ``now`` stands in the tree, which is where ``original`` stood."""
    link = source.parent(original)
    assert link is not None
    owner, field = link
    value = getattr(owner, field)
    if isinstance(value, list):
        value[next(k for k, entry in enumerate(value) if entry is now)] = new
    else:
        setattr(owner, field, new)


def clash(source: Source) -> int | None:
    """The line where a source uses the name ``_cfac`` itself, or None."""
    if "_cfac" not in source.text:
        return None
    for node in ast.walk(source.tree):
        names = [getattr(node, field, None) for field in ("id", "name", "arg", "asname", "rest")]
        if isinstance(node, ast.Global | ast.Nonlocal):
            names += node.names
        if "_cfac" in names:
            return getattr(node, "lineno", 1)
    return None
