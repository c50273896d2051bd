"""The lint script for module sizes, machine paths and registry hosts."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "check_tree.py"
problems = runpy.run_path(str(SCRIPT))["problems"]


@pytest.mark.parametrize(
    "line",
    ["see /wor" + "k/main/x", 'HOME = "/roo' + 't/.cache"', "https://py" + "pi.org/simple",
     "pip install -" + "-index-url here", "npm" + "js.org", "/hom" + "e/me/notes"],
)  # fmt: skip
def test_names_of_machines_and_registries_are_found(line):
    (found,) = problems("docs/x.md", f"fine\n{line}\n")
    assert found.startswith("docs/x.md:2: ")


@pytest.mark.parametrize(
    "line",
    ["a/work/tree", "https://docs.python.org", "the PyPI package", "src/root/x", "/tmp/work/x"],
)
def test_other_text_is_fine(line):
    assert problems("docs/x.md", line) == []


def test_long_modules_are_found_but_not_golden_cases():
    text = "x = 1\n" * 501
    assert problems("compiler/a.py", text) == ["compiler/a.py: 501 lines, 500 at most"]
    assert problems("tests/cases/a.py", text) == []
    assert problems("compiler/a.py", "x = 1\n" * 500) == []
