"""The explanations of diagnostics: one file ``explain/CODE.md`` for each code.

The form is fixed: ``# CODE: title``, prose, ``## Bad`` and ``## Good`` with one
fenced ``yaml`` block each, after a paragraph where it needs one.
A block may hold several files: a line ``# file: NAME`` begins another, and the
first is ``spec.yaml``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "explain"
MAIN_FILE = "spec.yaml"

_FORM = re.compile(
    r"# (?P<code>CF\d{3}): (?P<title>[^\n]+)\n\n"
    r"(?P<prose>.+?)\n\n"
    r"## Bad\n\n(?:(?:(?!```).)+?\n\n)?```yaml\n(?P<bad>.*?)```\n\n"
    r"## Good\n\n(?:(?:(?!```).)+?\n\n)?```yaml\n(?P<good>.*?)```\s*",
    re.DOTALL,
)
_FILE = re.compile(r"^# file: (\S+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A code with its title, prose, and an example of each kind."""

    code: str
    title: str
    prose: str
    bad: str
    good: str
    text: str


def codes() -> list[str]:
    """All codes that have an explanation."""
    return sorted(path.stem for path in FOLDER.glob("CF[0-9][0-9][0-9].md"))


def load_explanation(code: str) -> Explanation | None:
    """The explanation of ``code``; None where there is none, ValueError on a bad form."""
    code = code.upper()
    path = FOLDER / f"{code}.md"
    if not re.fullmatch(r"CF\d{3}", code) or not path.is_file():
        return None
    text = path.read_text("utf-8")
    match = _FORM.fullmatch(text)
    if match is None or match["code"] != code:
        raise ValueError(f"{path}: not in the form of an explanation")
    return Explanation(code, match["title"], match["prose"], match["bad"], match["good"], text)


def example_files(block: str) -> dict[str, str]:
    """The files of an example block by name."""
    parts = _FILE.split(block)
    files = {MAIN_FILE: parts[0]} if parts[0].strip() else {}
    files.update(zip(parts[1::2], parts[2::2], strict=True))
    return files
