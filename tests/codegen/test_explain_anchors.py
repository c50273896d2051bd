"""The examples in the explanations of CF4xx give, and do not give, their code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from codegen_support import compile_case, make_engine

from cfac.compiler.explanations import FOLDER, example_files, load_explanation

CODES = sorted(path.stem for path in FOLDER.glob("CF4*.md"))
SOURCES = (Path(__file__).parents[2] / "codegen").glob("*.py")


def test_every_code_is_explained() -> None:
    used = set()
    for path in SOURCES:
        used |= set(re.findall(r"\bCF4\d\d\b", path.read_text("utf-8")))
    assert used == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_examples(code: str, tmp_path: Path) -> None:
    explanation = load_explanation(code)
    assert explanation is not None
    engine = re.search(r"## Engine\n\n```python\n(.*?)```", explanation.text, re.S)
    if engine is None:
        assert code in {"CF412", "CF413", "CF414", "CF415"}
        return
    make_engine(tmp_path / "engine", "", "1.0")
    for name, text in example_files(engine[1]).items():
        (tmp_path / "engine" / name).write_text(text)
    for name, text in example_files(explanation.bad).items():
        (tmp_path / name).write_text(text)
    options = {"allow_partial": True} if code == "CF433" else {}
    _, text = compile_case(tmp_path, **options)
    kind = "warning" if code in {"CF417", "CF418", "CF431", "CF433", "CF434"} else "error"
    assert re.findall(rf"{kind}\[(\w+)\]", text) == [code], text
    for name, text in example_files(explanation.good).items():
        (tmp_path / name).write_text(text)
    result, text = compile_case(tmp_path)
    assert result is not None and result.ok and code not in text, text
