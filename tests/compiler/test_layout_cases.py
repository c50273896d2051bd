"""Golden folders of layouts: what the compiler says, and its report of those that are right.

Update them with ``pytest tests/compiler/test_layout_cases.py --update-golden``.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from cfac.compiler.api import check, load
from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.layouts.report import render as report
from cfac.compiler.model import Spec
from cfac.compiler.render import render

CASES = Path(__file__).parents[1] / "cases" / "layouts"
NAMES = sorted(path.parent.name for path in CASES.glob("*/spec.yaml"))
#: Codes that only the cases here, or those of literal layouts, give.
CODES = {"CF610", "CF620", "CF621", "CF622", "CF623", "CF624"}


def diagnose() -> tuple[Spec | None, Diagnostics]:
    spec, found = load("spec.yaml")
    diagnostics = Diagnostics(list(found))
    if spec is not None:
        diagnostics.extend(check(spec).diagnostics)
    return spec, diagnostics


@pytest.mark.parametrize("name", NAMES)
def test_case(
    name: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CASES / name)
    spec, found = diagnose()
    golden(CASES / name / "expected.txt", render(found.sorted(), spec.sources if spec else None))
    if spec is not None and not found.errors:
        golden(CASES / name / "expected.md", report(spec))
    else:
        assert not (CASES / name / "expected.md").exists()


def test_each_code_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    for name in NAMES:
        monkeypatch.chdir(CASES / name)
        seen |= {item.code for item in diagnose()[1]}
    assert seen >= CODES
