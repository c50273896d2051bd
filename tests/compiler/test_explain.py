"""Every code is explained, and its examples do what they say."""

import re
from pathlib import Path

import pytest

from cfac.compiler.api import check, load_together
from cfac.compiler.explanations import FOLDER, codes, example_files, load_explanation

ROOT = Path(__file__).parents[2]
RUNNABLE = [c for c in codes() if c[:3] in ("CF1", "CF2", "CF3", "CF5", "CF6")]


def emitted() -> set[str]:
    found: set[str] = set()
    for folder in ("compiler", "codegen"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r"\"(CF\d{3})\"", path.read_text("utf-8")))
    return found


def found_in(block: str, folder: Path) -> dict[str, str]:
    for name, text in example_files(block).items():
        (folder / name).write_text(text, "utf-8")
    together = [folder / "spec.yaml", *sorted(folder.glob("with-*.yaml"))]
    spec, diagnostics = load_together(together)
    found = list(diagnostics)
    if spec is not None:
        found += check(spec).diagnostics
    return {d.code: d.severity for d in found}


@pytest.mark.parametrize("code", sorted(emitted()))
def test_every_code_is_explained(code: str) -> None:
    assert (FOLDER / f"{code}.md").is_file()


@pytest.mark.parametrize("code", codes())
def test_form(code: str) -> None:
    found = load_explanation(code)
    assert found is not None and found.bad and found.good


@pytest.mark.parametrize("code", RUNNABLE)
def test_bad_yields_the_code_and_good_does_not(code: str, tmp_path: Path) -> None:
    explanation = load_explanation(code)
    assert explanation is not None
    bad, good = tmp_path / "bad", tmp_path / "good"
    bad.mkdir()
    good.mkdir()
    assert code in found_in(explanation.bad, bad)
    after = found_in(explanation.good, good)
    assert code not in after
    assert "error" not in after.values(), after


def test_unknown_code() -> None:
    assert load_explanation("CF999") is None
    assert load_explanation("../../x") is None
