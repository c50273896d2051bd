"""One Python source file: bytes, text, tree, and the way between their positions.

Edits are insertions into the text; the encoded result must decode to the same
text again, so every byte that is not inserted stays as it was.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_BOM = b"\xef\xbb\xbf"
_EOL = re.compile(r"\r\n|\r|\n")
_BLANK = re.compile(r"[ \t\f]*")


class SourceError(Exception):
    """A file that cannot be read as Python source."""


@dataclass(slots=True)
class Source:
    """A parsed source file.  ``path`` is relative to the engine's root, with slashes."""

    path: str
    raw: bytes
    bom: bytes
    encoding: str
    text: str
    tree: ast.Module
    starts: list[int]
    _parents: dict[ast.AST, tuple[ast.AST, str]] = field(default_factory=dict)

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return len(self.starts)

    def line(self, number: int) -> str:
        """A line (counting from 1) with its line ending."""
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end]

    def eol(self, number: int) -> str:
        """The line ending of a line; of a line before it if it has none."""
        for k in range(min(number, self.lines), 0, -1):
            match = re.search(r"(\r\n|\r|\n)\Z", self.line(k))
            if match:
                return match[1]
        return "\n"

    def indent(self, number: int) -> str:
        """The white space that a line begins with."""
        match = _BLANK.match(self.line(number))
        return match[0] if match else ""

    def offset(self, line: int, column: int) -> int:
        """The character offset of an ast position (line, column in UTF-8 bytes)."""
        text = self.line(line)
        if not text.isascii():
            column = len(text.encode()[:column].decode())
        return self.starts[line - 1] + column

    def segment(self, node: ast.AST) -> str:
        """The source text of a node that has a position."""
        start, end = self.span(node)
        return self.text[start:end]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The character offsets at which a node begins and ends."""
        at = (getattr(node, "lineno", 1), getattr(node, "col_offset", 0))
        to = (getattr(node, "end_lineno", at[0]), getattr(node, "end_col_offset", at[1]))
        return self.offset(*at), self.offset(*to)

    def encode(self, text: str) -> bytes:
        """``text`` in the file's encoding, without the byte order mark."""
        return text.encode(self.encoding)

    def parent(self, node: ast.AST) -> tuple[ast.AST, str] | None:
        """The node that holds this one, and the name of the field it is in."""
        if not self._parents:
            found: list[ast.AST] = [self.tree]
            for above in found:  # grows while it is gone through
                for name in above._fields:
                    value = getattr(above, name, None)
                    for child in value if isinstance(value, list) else (value,):
                        if isinstance(child, ast.AST):
                            self._parents[child] = (above, name)
                            found.append(child)
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[tuple[ast.AST, str, ast.AST]]:
        """From a node upwards: (parent, field, the child in that field)."""
        link = self.parent(node)
        while link is not None:
            yield link[0], link[1], node
            node = link[0]
            link = self.parent(node)


def check_compiles(text: str, path: str) -> None:
    """SyntaxError if the compiler proper refuses the text (scoping rules; nothing runs)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(text, path, "exec", dont_inherit=True)


def parse(text: str) -> ast.Module:
    """Parse source text, silently as to its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def read_source(root: Path, path: str) -> Source:
    """Read and parse ``root/path``; SourceError says what is wrong."""
    try:
        raw = (root / path).read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error
    return from_bytes(raw, path)


def from_bytes(raw: bytes, path: str = "<source>") -> Source:
    """Parse the bytes of a source file."""
    bom = _BOM if raw.startswith(_BOM) else b""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        text = raw[len(bom) :].decode(encoding)
        tree = parse(text)
    except SyntaxError as error:
        raise SourceError(f"{path}:{error.lineno or 1}: {error.msg}") from error
    except (UnicodeDecodeError, LookupError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: {error}") from error
    if bom + text.encode(encoding) != raw:
        raise SourceError(f"{path}: encoding {encoding} does not give back the same bytes")
    starts = [0, *(match.end() for match in _EOL.finditer(text))]
    if starts[-1] == len(text):
        starts.pop()
    return Source(path, raw, bom, encoding, text, tree, starts)
