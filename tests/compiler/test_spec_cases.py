"""Golden folders: a spec and what the compiler says of it.

Update them with ``pytest tests/compiler/test_spec_cases.py --update-golden``.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from cfac.compiler.api import check, load
from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.render import render

CASES = Path(__file__).parents[1] / "cases" / "spec"
NAMES = sorted(path.parent.name for path in CASES.glob("*/spec.yaml"))


def diagnose(name: str) -> tuple[Diagnostics, str]:
    spec, diagnostics = load("spec.yaml")
    if spec is not None:
        diagnostics.extend(check(spec).diagnostics)
    return diagnostics, render(diagnostics.sorted(), spec.sources if spec else None)


@pytest.mark.parametrize("name", NAMES)
def test_case(
    name: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CASES / name)
    _, text = diagnose(name)
    golden(CASES / name / "expected.txt", text)


def test_eight_mistakes_give_eight_diagnostics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES / "eight-mistakes")
    found, _ = diagnose("eight-mistakes")
    where = [(d.code, d.span.line, d.span.column) for d in found.sorted() if d.span]
    assert where == [
        ("CF211", 5, 28),  # default: "one"
        ("CF202", 8, 55),  # core.Raedy
        ("CF201", 10, 27),  # fronted
        ("CF107", 13, 51),  # cots
        ("CF205", 15, 24),  # worker.Ready
        ("CF203", 17, 15),  # replicas: pt
        ("CF111", 20, 38),  # worker[i-]
        ("CF209", 21, 43),  # core.Start
    ]
    assert len(found) == 8
