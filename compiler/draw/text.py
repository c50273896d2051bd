"""Text in drawings: width estimates, wrapping at word boundaries, ellipsis.

No font is shipped or asked for, so widths are estimated from the advance widths of
DejaVu Sans, the widest of the usual sans-serif fallbacks: what fits in the estimate
fits on screen.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import combinations, pairwise

_ELLIPSIS = "…"
_WIDTHS: dict[str, float] = {}
for _chars, _width in (
    ("ijl|'", 0.29),
    (" ,.:;!()[]/\\IJtfr-`", 0.40),
    ('"*_?sczkvxyJLF', 0.56),
    ("abdeghnopquTEYPSZXKABCV0123456789$£«»", 0.66),
    ("RDGHNUOQ#&+<>=~^·\N{MULTIPLICATION SIGN}→", 0.84),
    ("mwMW@%…—", 1.02),
):
    for _char in _chars:
        _WIDTHS.setdefault(_char, _width)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|\s+|.", re.DOTALL)


def width(text: str, size: float) -> float:
    """An upper estimate of the advance width of ``text`` at font size ``size``."""
    total = 0.0
    for char in text:
        known = _WIDTHS.get(char)
        if known is not None:
            total += known
        elif unicodedata.combining(char):
            continue
        else:
            total += 1.0 if unicodedata.east_asian_width(char) in "WF" else 0.84
    return total * size


def clean(text: str) -> str:
    """``text`` with control characters, which XML forbids, made visible."""
    return "".join(c if c.isprintable() else "�" for c in text)


def ellipsis(text: str, size: float, limit: float) -> str:
    """``text``, shortened to at most ``limit`` units by an ellipsis in its middle."""
    if width(text, size) <= limit:
        return text
    for keep in range(len(text) - 1, 0, -1):
        head = text[: (keep * 2 + 2) // 3]
        tail = text[len(text) - keep // 3 :] if keep // 3 else ""
        short = head + _ELLIPSIS + tail
        if width(short, size) <= limit:
            return short
    return _ELLIPSIS


def wrap(text: str, size: float, limit: float, lines: int = 3) -> tuple[str, ...]:
    """Break a name at its word boundaries (CamelCase, ``_``, ``-``) into few short lines.

    As few lines as fit, as even as possible; what still does not fit is ellipsised.
    """
    words = _WORDS.findall(text)
    for count in range(1, lines + 1):
        best = _even(words, size, count)
        if best is not None and _longest(best, size) <= limit:
            return best
    broken = _even(words, size, min(lines, len(words))) or (text,)
    return tuple(ellipsis(line, size, limit) for line in broken)


def _even(words: list[str], size: float, count: int) -> tuple[str, ...] | None:
    """``words`` in exactly ``count`` lines, the longest as short as it can be."""
    if count > 2 and len(words) > 40:  # no name; do not try all ways
        words = ["".join(words[k : k + len(words) // 40 + 1])
                 for k in range(0, len(words), len(words) // 40 + 1)]  # fmt: skip
    best: tuple[str, ...] | None = None
    for cuts in combinations(range(1, len(words)), count - 1):
        ends = (0, *cuts, len(words))
        pieces = ("".join(words[a:b]).strip() for a, b in pairwise(ends))
        lines = tuple(pieces)
        if all(lines) and (best is None or _longest(lines, size) < _longest(best, size)):
            best = lines
    return best


def _longest(lines: tuple[str, ...], size: float) -> float:
    return max(width(line, size) for line in lines)
