"""Diagnostics: what is wrong, where, and what to do about it.

A diagnostic is rendered as ``file:line:col: error[CF203]: message``, the source
line with a caret, notes, and ``help:``.  Codes are stable: CF1xx syntax, CF2xx
names, CF3xx graph, CF4xx anchors, CF5xx hazards, CF6xx layouts.  Each code is
explained by ``cfac explain CODE`` from the file ``compiler/explain/CODE.md``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]


class Span(NamedTuple):
    """A piece of one source line; lines and columns count from 1.

    ``column`` counts characters, not bytes; ``end_column`` is exclusive.
    """

    file: str
    line: int
    column: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Note:
    """A further line under a diagnostic, with its own position if it has one."""

    message: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding.  ``span`` is None only where no source position exists."""

    code: str
    severity: Severity
    message: str
    span: Span | None = None
    notes: tuple[Note, ...] = ()
    help: str | None = None


@dataclass(slots=True)
class Diagnostics:
    """A collector: passes add to it and go on, so that one run finds all errors."""

    items: list[Diagnostic] = field(default_factory=list)

    def error(
        self,
        code: str,
        message: str,
        span: Span | None = None,
        *,
        notes: Iterable[Note] = (),
        help: str | None = None,
    ) -> None:
        """Add an error."""
        self.items.append(Diagnostic(code, "error", message, span, tuple(notes), help))

    def warning(
        self,
        code: str,
        message: str,
        span: Span | None = None,
        *,
        notes: Iterable[Note] = (),
        help: str | None = None,
    ) -> None:
        """Add a warning."""
        self.items.append(Diagnostic(code, "warning", message, span, tuple(notes), help))

    def extend(self, other: Iterable[Diagnostic]) -> None:
        """Add all of ``other``."""
        self.items.extend(other)

    @property
    def errors(self) -> list[Diagnostic]:
        """The errors alone, in the order found."""
        return [item for item in self.items if item.severity == "error"]

    def sorted(self) -> list[Diagnostic]:
        """All, by position; those without one come last."""
        none = Span("\uffff", 0, 0, 0)
        unique = list(dict.fromkeys(self.items))
        return sorted(unique, key=lambda d: (d.span or none, d.code, d.message))

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """``did you mean 'x'?`` for the nearest known name, or None."""
    near = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else None
