"""The commands, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from codegen_support import MAIN, SPEC, commit_all, files, make_engine

from cfac.compiler.cli import cli


@pytest.fixture
def fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the engine with a spec in it."""
    root = make_engine(tmp_path / "fork", MAIN)
    (root / "start.yaml").write_text(SPEC)
    commit_all(root)
    monkeypatch.chdir(root)
    return root


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


def test_bare_compile(fork: Path) -> None:
    done = run("compile")
    assert done.exit_code == 0, done.output
    assert "1 of 1 transitions bound" in done.output
    names = sorted(path.name for path in (fork / "patches").iterdir())
    assert names == [f"tiny-start.{end}" for end in ("lock", "md", "patch", "plan.json")]
    assert run("compile", "--check").exit_code == 0


def test_bare_compile_in_a_folder_below(fork: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fork / "deploy").mkdir()
    (fork / "start.yaml").rename(fork / "deploy/start.yaml")
    monkeypatch.chdir(fork / "deploy")
    assert run("compile").exit_code == 0
    assert (fork / "deploy/patches/tiny-start.patch").is_file()


def test_which_spec(fork: Path) -> None:
    (fork / "second.yaml").write_text(SPEC)
    done = run("compile")
    assert done.exit_code == 2
    assert "several startup graphs" in done.output


def test_which_spec_of_a_base_and_an_overlay(fork: Path) -> None:
    (fork / "start.yaml").rename(fork / "base.yaml")
    middle = SPEC.partition("engine:")[0] + "include: base.yaml\n"
    (fork / "middle.yaml").write_text(middle.replace("tiny-start", "middle"))
    (fork / "top.yml").write_text(middle.replace("tiny-start", "top").replace("base", "middle"))
    assert run("compile").exit_code == 0
    assert (fork / "patches/top.patch").is_file()
    done = run("check")
    assert done.exit_code == 0
    assert done.output.startswith("top.yml: ")
    (fork / "other.yaml").write_text(middle)
    done = run("compile")
    assert done.exit_code == 2
    assert "several startup graphs in the current folder: other.yaml, top.yml;" in done.output


def test_which_spec_of_two_that_include_each_other(fork: Path) -> None:
    head = SPEC.partition("engine:")[0]
    (fork / "start.yaml").write_text(head + "include: other.yaml\n")
    (fork / "other.yaml").write_text(head + "include: start.yaml\n")
    done = run("compile")
    assert done.exit_code == 2
    assert "several startup graphs in the current folder: other.yaml, start.yaml;" in done.output


def test_check_finds_stale_files(fork: Path) -> None:
    run("compile")
    before = files(fork)
    (fork / "start.yaml").write_text(SPEC.replace("at: after", "at: before"))
    done = run("compile", "--check")
    assert done.exit_code == 3
    assert "patches/tiny-start.patch: out of date" in done.output
    assert "_cfac.publish" in done.output
    (fork / "start.yaml").write_text(SPEC)
    (fork / "patches/tiny-start.lock").unlink()
    done = run("compile", "--check")
    assert done.exit_code == 3
    assert "tiny-start.lock: missing" in done.output
    assert files(fork) == {k: v for k, v in before.items() if not k.endswith(".lock")}


def test_apply_and_unapply(fork: Path) -> None:
    run("compile")
    before = files(fork)
    assert run("apply", "patches/tiny-start.patch").exit_code == 0
    after = files(fork)
    assert b"_cfac.publish" in after["tiny/main.py"]
    assert "nothing to do" in run("apply", "patches/tiny-start.patch").output
    assert run("compile", "--check").exit_code == 0  # as if it were not applied
    assert run("compile").exit_code == 0
    assert files(fork) == after
    (fork / "start.yaml").write_text(SPEC.replace("at: after", "at: before"))
    assert run("compile", "--check").exit_code == 3
    done = run("compile")
    assert done.exit_code == 1
    assert "error[CF411]" in done.output
    assert "first: cfac unapply patches" in done.output
    (fork / "start.yaml").write_text(SPEC)
    done = run("compile", "-o", "elsewhere")
    assert done.exit_code == 1
    assert "this tree is patched already" in done.output
    assert files(fork) == after
    assert run("unapply", "patches/tiny-start.patch").exit_code == 0
    assert files(fork) == before
    assert "nothing to do" in run("unapply", "patches/tiny-start.patch").output


def test_apply_elsewhere(fork: Path) -> None:
    run("compile")
    (fork / "tiny/main.py").write_text("x = 1\n")
    done = run("apply", "patches/tiny-start.patch")
    assert done.exit_code == 1
    assert "error[CF414]" in done.output
    assert not (fork / "tiny/_cfac").exists()


def test_renamed_function_writes_nothing(fork: Path) -> None:
    (fork / "tiny/main.py").write_text(MAIN.replace("def run", "def run_engine"))
    before = files(fork)
    done = run("compile")
    assert done.exit_code == 1
    assert "start.yaml:9:30: error[CF404]" in done.output
    assert "tiny/main.py:1: tiny.main:run_engine  [contains work, line 2]" in done.output
    assert files(fork) == before


def test_check_with_engine(fork: Path) -> None:
    done = run("check", "start.yaml", "--engine", ".")
    assert done.exit_code == 0
    assert "core.Ready" in done.output
    assert "1 of 1 transitions bound in tiny 1.2.0" in done.output
    (fork / "tiny/main.py").write_text("x = 1\n")
    assert run("check", "start.yaml").exit_code == 0
    done = run("check", "start.yaml", "--engine", ".", "--format", "json")
    assert done.exit_code == 1
    assert [item["code"] for item in json.loads(done.stdout)] == ["CF404"]
    done = run("check", "start.yaml", "--engine", ".", "--format", "github")
    assert done.stdout.startswith("::error file=start.yaml,line=9,")


def test_lock(fork: Path) -> None:
    run("compile")
    moved = "# a comment\n\n" + MAIN
    (fork / "tiny/main.py").write_text(moved)
    assert "CF413" not in run("compile").output
    lock = (fork / "patches/tiny-start.lock").read_bytes()
    (fork / "tiny/main.py").write_text(moved.replace("return 1", "return 2"))
    done = run("compile")
    assert done.exit_code == 0
    assert "warning[CF413]" in done.output
    assert "its anchor was reviewed: fingerprint" in done.output
    old = json.loads(lock)["functions"]["tiny.main:run"]["fingerprint"][:16]
    assert old in done.output
    assert (fork / "patches/tiny-start.lock").read_bytes() == lock
    assert "warning[CF413]" in run("compile", "--check").output
    (fork / "tiny/__init__.py").write_text('__version__ = "1.3.0"\n')
    done = run("compile", "--check")
    assert "its anchor was reviewed (tiny 1.2.0 -> 1.3.0): fingerprint" in done.output
    assert "CF413" not in run("compile", "--accept").output
    assert (fork / "patches/tiny-start.lock").read_bytes() != lock
    assert "CF413" not in run("compile").output


def test_the_hook_in_place_of_the_patch(fork: Path) -> None:
    before = files(fork)
    done = run("compile", "--backend", "hook")
    assert done.exit_code == 0, done.output
    assert "1 of 1 transitions bound" in done.output
    names = sorted(path.name for path in (fork / "patches").iterdir())
    (wheel,) = (name for name in names if name.endswith(".whl"))
    assert wheel.startswith("cfac_hook_tiny_start-") and "+tiny.1.2.0.g" in wheel
    assert [name for name in names if name != wheel] == [
        f"tiny-start.{end}" for end in ("lock", "md", "plan.json")
    ]
    assert {k: v for k, v in files(fork).items() if not k.startswith("patches/")} == before
    assert run("compile", "--backend", "hook", "--check").exit_code == 0
    assert run("compile", "--check").exit_code == 3  # there is no patch

    (fork / "start.yaml").write_text(SPEC.replace("at: after", "at: before"))
    other = fork / "patches" / "cfac_hook_tiny_start_too-1-py3-none-any.whl"
    other.write_bytes(b"of another spec")
    done = run("compile", "--backend", "hook", "--check")
    assert done.exit_code == 3
    assert f"patches/{wheel}: out of date" in done.output
    assert ".whl: missing" in done.output
    assert run("compile", "--backend", "hook").exit_code == 0
    assert not (fork / "patches" / wheel).exists()
    assert len(list((fork / "patches").glob("*.whl"))) == 2
    assert run("compile", "--backend", "hook", "--check").exit_code == 0
