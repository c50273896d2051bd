"""Compile an edited source as if it were the original: its lines, its columns.

Edits are insertions into the original's bytes.  The edited text is parsed, and every
position in the tree is moved to where its text stands in the original; tracebacks,
``inspect.getsource`` and debuggers then show the file that is on the disk.  What is
inserted has no text there.  A statement gets the line of the statement that follows it
in its block (else that of the one before it), an expression the line that it is put into,
and neither has columns (-1 is "unknown" to the compiler, Python's PEP 657).
"""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import CodeType
from typing import Any

_EOL = re.compile(rb"\r\n|\r|\n")
#: Offset in the original's bytes, and the bytes that are inserted there; ascending.
Splices = Sequence[tuple[int, bytes]]


def compile_edited(
    raw: bytes, splices: Splices, bom: int, encoding: str, filename: str
) -> CodeType:
    """The code of ``raw`` with ``splices``, whose first ``bom`` bytes are its byte order mark.

    Raises SyntaxError or ValueError where this Python cannot compile it.
    """
    tree = parse_edited(raw, splices, bom, encoding)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the stock bytecode would not repeat them either
        code: CodeType = compile(tree, filename, "exec", dont_inherit=True)
    return code


def parse_edited(raw: bytes, splices: Splices, bom: int, encoding: str) -> ast.Module:
    """The tree of the edited source, with the positions of the original."""
    parts: list[bytes] = []  # both in UTF-8, in which ast counts columns
    pieces: list[tuple[int, bytes]] = []
    at, done = bom, 0
    for offset, piece in splices:
        parts.append(raw[at:offset].decode(encoding).encode())
        done += len(parts[-1])
        pieces.append((done, piece.decode(encoding).encode()))
        at = offset
    parts.append(raw[at:].decode(encoding).encode())
    table = _Table(b"".join(parts), pieces)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(table.new.decode())
    _relocate(tree, table)
    return tree


def _starts(data: bytes) -> list[int]:
    return [0, *(match.end() for match in _EOL.finditer(data))]


class _Table:
    """From (line, column) in the new text to the same place in the old one."""

    def __init__(self, old: bytes, pieces: Sequence[tuple[int, bytes]]) -> None:
        parts: list[bytes] = []
        #: start and end in the new text of each piece, and its offset in the old one
        self._pieces: list[tuple[int, int, int]] = []
        at = added = 0
        for offset, piece in pieces:
            parts += [old[at:offset], piece]
            self._pieces.append((offset + added, offset + added + len(piece), offset))
            added += len(piece)
            at = offset
        self.new = b"".join([*parts, old[at:]])
        self._old_starts = _starts(old)
        #: per new line: its old line, the old column of its begin, the pieces' parts in it
        self._lines: list[tuple[int, int, tuple[tuple[int, int], ...]]] = []
        starts = [*_starts(self.new), len(self.new) + 1]
        first = 0
        for start, end in pairwise(starts):
            while first < len(self._pieces) and self._pieces[first][1] <= start:
                first += 1
            cuts = []
            for low, high, _ in self._pieces[first:]:
                if low >= end:
                    break
                cuts.append((max(low, start) - start, min(high, end) - start))
            self._lines.append((*self._old(start, first), tuple(cuts)))

    def _old(self, place: int, first: int) -> tuple[int, int]:
        """Old line and column of an offset in the new text; ``first`` piece ends after it."""
        offset = place
        for low, high, _ in self._pieces[:first]:
            offset -= high - low
        if first < len(self._pieces) and self._pieces[first][0] < place:
            offset = self._pieces[first][2]
        line = bisect_right(self._old_starts, offset)
        return line, offset - self._old_starts[line - 1]

    def map(self, line: int, column: int) -> tuple[int, int]:
        """The old line and column of a place in the new text."""
        old, base, cuts = self._lines[line - 1]
        moved = base + column
        for low, high in cuts:
            if low < column:
                moved -= min(high, column) - low
        return old, moved

    def plain(self, line: int) -> int | None:
        """The old line of a line in which nothing is inserted; None for any other."""
        old, base, cuts = self._lines[line - 1]
        return None if cuts or base else old

    def begins_in(self, line: int, column: int) -> bool:
        """Whether the text at a place is inserted."""
        return any(low <= column < high for low, high in self._lines[line - 1][2])

    def ends_in(self, line: int, column: int) -> bool:
        """Whether the text on both sides of a place is inserted, by one edit."""
        return any(low < column < high for low, high in self._lines[line - 1][2])


def _relocate(tree: ast.Module, table: _Table) -> None:
    inserted: set[int] = set()
    nodes: list[Any] = [node for node in ast.walk(tree) if hasattr(node, "lineno")]
    for node in reversed(nodes):  # children first
        line, end = table.plain(node.lineno), table.plain(node.end_lineno)
        if line is not None and end is not None:
            node.lineno, node.end_lineno = line, end
            continue
        new = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        node.lineno, node.col_offset = table.map(*new[0])
        node.end_lineno, node.end_col_offset = table.map(*new[1])
        empty = (node.lineno, node.col_offset) == (node.end_lineno, node.end_col_offset)
        if empty and table.begins_in(*new[0]):
            inserted.add(id(node))
            node.end_lineno, node.col_offset, node.end_col_offset = node.lineno, -1, -1
        elif table.ends_in(*new[1]):  # its last statement is inserted
            ends = [c for c in _positioned(node) if id(c) not in inserted]
            last = max(ends, key=lambda c: (c.end_lineno, c.end_col_offset))
            node.end_lineno, node.end_col_offset = last.end_lineno, last.end_col_offset
        elif node.col_offset < 0 or node.end_col_offset < 0 or _reversed(node):
            # In an f-string, Python before 3.12 counts columns in its own way.
            node.end_lineno = node.lineno
            node.col_offset = node.end_col_offset = -1
    for node in ast.walk(tree):
        for _, block in ast.iter_fields(node):
            if isinstance(block, list) and any(id(item) in inserted for item in block):
                _give_lines(block, inserted)


def _reversed(node: Any) -> bool:
    return bool((node.lineno, node.col_offset) > (node.end_lineno, node.end_col_offset))


def _positioned(node: ast.AST) -> Iterator[Any]:
    """The nearest nodes below one that have a position."""
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            yield child
        else:
            yield from _positioned(child)


def _last_line(statement: ast.stmt) -> int:
    """Where the last simple statement in a statement begins."""
    inner = [node for node in ast.walk(statement) if isinstance(node, ast.stmt)]
    return max(node.lineno for node in inner)


def _give_lines(block: list[Any], inserted: set[int]) -> None:
    """Give inserted statements of a block the lines of their neighbours."""
    own = [item for item in block if id(item) not in inserted]
    if not own or not isinstance(own[0], ast.stmt):
        return
    line = _last_line(own[-1])
    for item in reversed(block):
        if id(item) not in inserted:
            decorators = getattr(item, "decorator_list", ())
            line = min([item.lineno, *(decorator.lineno for decorator in decorators)])
            continue
        for node in ast.walk(item):
            if hasattr(node, "lineno"):
                node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
