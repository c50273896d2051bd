"""Diagnostics as text for people, JSON for tools, and GitHub annotations."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import click

from cfac.compiler.diagnostics import Diagnostic, Span

Format = Literal["text", "json", "github"]
FORMATS: tuple[Format, ...] = ("text", "json", "github")
_TAB = 4
_WIDTH = 160
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan", "help": "green"}


def render(
    diagnostics: Iterable[Diagnostic],
    sources: Mapping[str, str] | None = None,
    fmt: Format = "text",
    *,
    colour: bool = False,
) -> str:
    """The diagnostics in one of the formats, with a final newline; empty for none.

    ``sources`` holds the texts of the files; a file that is not in it is read.
    """
    found = list(diagnostics)
    if fmt == "json":
        return json.dumps([_to_json(d) for d in found], indent=2, ensure_ascii=False) + "\n"
    if fmt == "github":
        return "".join(_to_github(d) for d in found)
    texts = _Texts(sources or {})
    return "\n".join(_to_text(d, texts, colour) for d in found)


def emit(
    diagnostics: Iterable[Diagnostic],
    sources: Mapping[str, str] | None = None,
    fmt: Format = "text",
) -> None:
    """Print diagnostics: text to stderr, coloured on a terminal, the rest to stdout."""
    stream = sys.stderr if fmt == "text" else sys.stdout
    colour = fmt == "text" and stream.isatty()
    click.echo(render(diagnostics, sources, fmt, colour=colour), file=stream, nl=False)


def summary(diagnostics: Iterable[Diagnostic]) -> str:
    """``2 errors, 1 warning``; empty for none."""
    found = list(diagnostics)
    parts: list[str] = []
    for severity in ("error", "warning"):
        count = sum(d.severity == severity for d in found)
        if count:
            parts.append(f"{count} {severity}{'s' if count > 1 else ''}")
    return ", ".join(parts)


class _Texts:
    """Source lines by file, read on demand."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._lines: dict[str, list[str]] = {}

    def line(self, span: Span) -> str | None:
        if span.file not in self._lines:
            text = self._sources.get(span.file)
            if text is None:
                try:
                    text = Path(span.file).read_text("utf-8-sig", "replace")
                except (OSError, ValueError):
                    text = ""
            self._lines[span.file] = _split(text)
        lines = self._lines[span.file]
        return lines[span.line - 1] if 0 < span.line <= len(lines) else None


def _split(text: str) -> list[str]:
    from cfac.compiler.yamlpos import split_lines

    return split_lines(text)


def _to_text(diagnostic: Diagnostic, texts: _Texts, colour: bool) -> str:
    def paint(text: str, kind: str) -> str:
        return click.style(text, fg=_COLOURS[kind], bold=True) if colour else text

    where = f"{_safe(str(diagnostic.span))}: " if diagnostic.span else ""
    label = paint(f"{diagnostic.severity}[{diagnostic.code}]", diagnostic.severity)
    lines = [f"{where}{label}: {_safe(diagnostic.message)}"]
    if diagnostic.span:
        lines += _excerpt(diagnostic.span, texts, lambda t: paint(t, diagnostic.severity))
    for note in diagnostic.notes:
        place = f"{_safe(str(note.span))}: " if note.span else ""
        lines.append(f"  {place}{paint('note', 'note')}: {_safe(note.message)}")
        if note.span:
            lines += _excerpt(note.span, texts, lambda t: paint(t, "note"))
    if diagnostic.help:
        lines.append(f"  {paint('help', 'help')}: {_safe(diagnostic.help)}")
    return "\n".join(lines) + "\n"


def _excerpt(span: Span, texts: _Texts, paint: Any) -> list[str]:
    """The source line and the caret below it, aligned for tabs and wide characters."""
    line = texts.line(span)
    if line is None or not line.strip():
        return []
    cells = [_cell(char) for char in line]
    start = min(span.column - 1, len(cells))
    end = max(min(span.end_column - 1, len(cells)), start + 1)
    first = 0
    if sum(width for _, width in cells) > _WIDTH:
        first = max(0, start - _WIDTH // 2)
        cells = cells[: first + _WIDTH]
    shown = "".join(text for text, _ in cells[first:]).rstrip()
    pad = sum(width for _, width in cells[first:start])
    length = sum(width for _, width in cells[start:end]) or 1
    gutter = f"{span.line:>5} | "
    mark = paint("^" * length)
    return [f"{gutter}{shown}", f"{' ' * (len(gutter) - 2)}| {' ' * pad}{mark}"]


def _cell(char: str) -> tuple[str, int]:
    """How a character is shown, and how many columns it takes."""
    if char == "\t":
        return " " * _TAB, _TAB
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return char, 0
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return "\N{REPLACEMENT CHARACTER}", 1
    return char, 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _safe(text: str) -> str:
    """Text without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _to_json(diagnostic: Diagnostic) -> dict[str, Any]:
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "span": _span_json(diagnostic.span),
        "notes": [
            {"message": note.message, "span": _span_json(note.span)} for note in diagnostic.notes
        ],
        "help": diagnostic.help,
    }


def _span_json(span: Span | None) -> dict[str, Any] | None:
    if span is None:
        return None
    return {
        "file": span.file,
        "line": span.line,
        "column": span.column,
        "end_column": span.end_column,
    }


def _to_github(diagnostic: Diagnostic) -> str:
    def data(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    def value(text: str) -> str:
        return data(text).replace(":", "%3A").replace(",", "%2C")

    message = diagnostic.message
    for note in diagnostic.notes:
        where = f"{note.span}: " if note.span else ""
        message += f"\n{where}note: {note.message}"
    if diagnostic.help:
        message += f"\nhelp: {diagnostic.help}"
    span = diagnostic.span
    place = ""
    if span is not None:
        place = (
            f"file={value(span.file)},line={span.line},col={span.column},"
            f"endColumn={span.end_column},"
        )
    return f"::{diagnostic.severity} {place}title={diagnostic.code}::{data(message)}\n"
