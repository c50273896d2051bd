"""Applying and taking out: all or nothing, restartable, inside of the tree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from codegen_support import MAIN, REPOSITORY, SPEC, compile_case, files, make_engine

from cfac.codegen.apply import PatchError, apply, parse_patch, unapply

PROGRAM = """
import os, signal, sys
from pathlib import Path
import cfac.codegen.apply as module
left = int(sys.argv[3])
real = os.replace
def replace(self, target):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return real(self, target)
Path.replace = replace
getattr(module, sys.argv[4])(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]))
"""


@pytest.fixture
def patch(tmp_path: Path) -> bytes:
    make_engine(tmp_path / "engine", MAIN)
    (tmp_path / "engine/tiny/other.py").write_text(MAIN)
    (tmp_path / "spec.yaml").write_text(
        SPEC.replace("[Start, Ready]", "[Start, Ready, Other]")
        + '  core.Other: {publish: {in: "tiny.other:run", at: entry}}\n'
    )
    result, text = compile_case(tmp_path)
    assert result is not None and result.ok, text
    return result.patch


def test_kill_and_go_on(patch: bytes, tmp_path: Path) -> None:
    root = tmp_path / "engine"
    before = files(root)
    (tmp_path / "p").write_bytes(patch)
    apply(patch, root)
    after = files(root)
    unapply(patch, root)
    for verb, start, end in (("apply", before, after), ("unapply", after, before)):
        for count in range(2 if verb == "unapply" else 4):
            command = [sys.executable, "-c", PROGRAM, str(tmp_path / "p"), str(root), str(count)]
            done = subprocess.run(
                [*command, verb], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False
            )
            assert done.returncode == -signal.SIGKILL
            half = {k: v for k, v in files(root).items() if not k.endswith(".cfac-tmp")}
            assert all(half.get(path) in (start.get(path), end.get(path)) for path in start | end)
            (apply if verb == "apply" else unapply)(patch, root)
            assert files(root) == end
            (unapply if verb == "apply" else apply)(patch, root)
            assert files(root) == start
        apply(patch, root)
    unapply(patch, root)
    assert files(root) == before


def test_changed_file_writes_nothing(patch: bytes, tmp_path: Path) -> None:
    root = tmp_path / "engine"
    (root / "tiny/other.py").write_text(MAIN + "# changed\n")
    before = files(root)
    with pytest.raises(PatchError, match=r"tiny/other\.py \(changed\)") as caught:
        apply(patch, root)
    assert caught.value.code == "CF414"
    assert files(root) == before
    (root / "tiny/other.py").unlink()
    with pytest.raises(PatchError, match=r"tiny/other\.py \(missing\)"):
        apply(patch, root)


def test_changed_after_apply_is_not_taken_out(patch: bytes, tmp_path: Path) -> None:
    root = tmp_path / "engine"
    apply(patch, root)
    with (root / "tiny/main.py").open("a") as stream:
        stream.write("# mine\n")
    before = files(root)
    with pytest.raises(PatchError, match=r"main\.py"):
        unapply(patch, root)
    assert files(root) == before


def test_modes_and_pycache(patch: bytes, tmp_path: Path) -> None:
    root = tmp_path / "engine"
    (root / "tiny/main.py").chmod(0o755)
    apply(patch, root)
    assert (root / "tiny/main.py").stat().st_mode & 0o777 == 0o755
    cache = root / "tiny/_cfac/__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"x")
    unapply(patch, root)
    assert (root / "tiny/main.py").stat().st_mode & 0o777 == 0o755
    assert not (root / "tiny/_cfac").exists()


def test_hard_links_are_left_alone(patch: bytes, tmp_path: Path) -> None:
    """Installers link files from a cache; the cache must not change."""
    root = tmp_path / "engine"
    (tmp_path / "cache.py").hardlink_to(root / "tiny/main.py")
    apply(patch, root)
    assert (tmp_path / "cache.py").read_text() == MAIN


def test_links_out_of_the_tree(patch: bytes, tmp_path: Path) -> None:
    root = tmp_path / "engine"
    outside = tmp_path / "outside.py"
    outside.write_text(MAIN)
    (root / "tiny/main.py").unlink()
    (root / "tiny/main.py").symlink_to(outside)
    with pytest.raises(PatchError, match="out of the tree"):
        apply(patch, root)
    assert outside.read_text() == MAIN
    (root / "tiny/main.py").unlink()
    (root / "tiny/main.py").write_text(MAIN)
    (tmp_path / "elsewhere").mkdir()
    (root / "tiny/_cfac").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PatchError, match="out of the tree"):
        apply(patch, root)
    assert files(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize(
    "path", ["../main.py", "/tiny/main.py", "tiny/../main.py", "other/main.py"]
)
def test_paths_out_of_the_tree(patch: bytes, tmp_path: Path, path: str) -> None:
    evil = patch.replace(b"tiny/main.py", path.encode())
    with pytest.raises(PatchError) as caught:
        apply(evil, tmp_path / "engine")
    assert caught.value.code == "CF415"


def test_damaged(patch: bytes, tmp_path: Path) -> None:
    root = tmp_path / "engine"
    before = files(root)
    assert parse_patch(patch).package == "tiny"
    for cut in range(0, len(patch) - 1, 7):
        with pytest.raises(PatchError):
            apply(patch[:cut], root)
    with pytest.raises(PatchError):
        apply(patch.replace(b"+    _cfac.publish", b"+    _cfac.wait", 1), root)
    with pytest.raises(PatchError):
        apply(b"diff --git a/x b/x\n", root)
    assert files(root) == before
