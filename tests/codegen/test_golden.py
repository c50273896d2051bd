"""One folder per case: a spec, an engine, and the expected patch or diagnostics."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from codegen_support import CASES, commit_all, compile_case, copy_engine, files, git

from cfac.codegen.apply import apply, unapply

NAMES = sorted(path.parent.name for path in CASES.glob("*/spec.yaml"))
REFUSED = [name for name in NAMES if name.startswith("refused")]
FINE = [name for name in NAMES if name not in REFUSED]


def golden(path: Path, data: bytes, update: bool) -> None:
    if update:
        path.write_bytes(data)
    assert path.read_bytes() == data


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, update: bool) -> None:
    result, text = compile_case(CASES / name)
    golden(CASES / name / "expected.txt", text.encode(), update)
    if result is not None:
        assert not result.ok
        assert result.patch == b"" and result.plan == result.lock == result.report == ""


@pytest.mark.parametrize("name", FINE)
def test_patch(name: str, update: bool, tmp_path: Path) -> None:
    result, text = compile_case(CASES / name)
    assert result is not None and result.ok, text
    body = result.patch[result.patch.index(b"diff --git") :]
    # The generated package is tested on its own; its bytes change with the plan's form.
    shown = b"".join(
        b"diff --git" + part
        for part in body.split(b"diff --git")[1:]
        if b"/_cfac/" not in part.split(b"\n", 1)[0]
    )
    golden(CASES / name / "expected.patch", shown, update)
    again, _ = compile_case(CASES / name)
    assert again is not None and again.patch == result.patch

    ours = copy_engine(CASES / name, tmp_path / "ours")
    before = files(ours)
    apply(result.patch, ours)
    after = files(ours)
    assert after.keys() - before.keys() == {"tiny/_cfac/__init__.py", "tiny/_cfac/plan.json"}
    for path, data in after.items():
        if path.endswith(".py"):
            ast.parse(data, path)
    assert apply(result.patch, ours).changed == ()
    assert files(ours) == after

    patch = tmp_path / "cfac.patch"
    patch.write_bytes(result.patch)
    for command in (["apply", "--whitespace=nowarn"], ["am", "-q", "--keep-cr"]):
        theirs = copy_engine(CASES / name, tmp_path / command[0])
        commit_all(theirs)
        git(theirs, *command, str(patch))
        assert files(theirs) == after, command

    unapply(result.patch, ours)
    assert files(ours) == before
    assert not (ours / "tiny" / "_cfac").exists()


@pytest.mark.parametrize("name", FINE)
def test_lines_are_only_added(name: str) -> None:
    """Except where a callee is wrapped or the last line gets its line end, no line changes."""
    patch = (CASES / name / "expected.patch").read_bytes()
    for line in patch.split(b"\n"):
        if line.startswith(b"-") and not line.startswith(b"--- "):
            assert name in {
                "async",
                "bom",
                "defer",
                "fork",
                "latin-1",
                "lone-cr",
                "multiline",
                "no-final-newline",
                "one-line-and-semicolons",
                "params",
                "site-when",
                "split",
            }
