"""Golden hazards: tests/cases/hazards/NAME.yaml and what the compiler says of it.

Update them with ``pytest tests/compiler/test_hazard_cases.py --update-golden``.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from cfac.compiler.api import check, load
from cfac.compiler.diagnostics import Diagnostic
from cfac.compiler.render import render

CASES = Path(__file__).parents[1] / "cases" / "hazards"
NAMES = sorted(path.stem for path in CASES.glob("*.yaml"))
CURED = [name for name in NAMES if name.endswith(("-cured", "-joined"))]


def diagnose(name: str) -> tuple[list[Diagnostic], str]:
    spec, diagnostics = load(f"{name}.yaml")
    assert spec is not None
    diagnostics.extend(check(spec).diagnostics)
    found = diagnostics.sorted()
    return found, render(found, spec.sources)


@pytest.mark.parametrize("name", NAMES)
def test_case(
    name: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CASES)
    found, text = diagnose(name)
    if name in CURED:
        assert not found, text
    else:
        assert found
        golden(CASES / f"{name}.txt", text)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("background-import", "add `after: frontend.CoreForked` to importer.Started"),
        ("renderer-warmup", "add `after: renderer.Warm` to frontend.CoreForked"),
    ],
)
def test_reverted_overlaps_are_refused(
    name: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CASES)
    (found,), _ = diagnose(name)
    assert found.code == "CF502"
    assert found.help is not None and wanted in found.help
