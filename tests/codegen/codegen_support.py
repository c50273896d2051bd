"""Helpers for the tests of the code generator."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cfac.codegen.compile import CompileResult, compile_engine
from cfac.codegen.engine import find_engine
from cfac.codegen.hook import edited
from cfac.codegen.patch import Change
from cfac.compiler.api import check, load_together
from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.render import render
from cfac.runtime.hook.relocate import parse_edited

CASES = Path(__file__).parents[1] / "cases" / "codegen"
REPOSITORY = Path(__file__).parents[2]


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def compile_case(
    folder: Path, engine: str = "engine", **options: object
) -> tuple[CompileResult | None, str]:
    """Compile ``folder/spec.yaml`` and give the diagnostics as text.

    Files ``with-*.yaml`` beside it are specs compiled together with it.
    """
    with inside(folder):
        together = ["spec.yaml", *sorted(path.name for path in Path().glob("with-*.yaml"))]
        spec, loaded = load_together(together)
        assert spec is not None, render(loaded)
        diagnostics = Diagnostics(list(loaded))
        diagnostics.extend(check(spec).diagnostics)
        result = None
        if not diagnostics.errors:
            tree = find_engine(spec, engine, diagnostics)
            if tree is not None:
                result = compile_engine(spec, tree, **options)  # type: ignore[arg-type]
                diagnostics.extend(result.diagnostics)
        return result, render(diagnostics.sorted(), spec.sources)


LINES = {"publish", "wait", "begin", "stop", "use"}
WRAPPERS = {"replaced", "take", "start", "context", "deferred", "later"}


class _Unedited(ast.NodeTransformer):
    def __init__(self, inserted: list[ast.AST]) -> None:
        self.inserted = inserted

    def visit(self, node: ast.AST) -> ast.AST | None:
        """Drop inserted statements; put wrapped callees in the place of their wrappers."""
        if isinstance(node, ast.ImportFrom) and [n.name for n in node.names] == ["_cfac"]:
            self.inserted.append(node)
            return None
        if isinstance(node, ast.Expr) and _hook(node.value) in LINES:
            self.inserted.append(node)
            return None
        if isinstance(node, ast.If) and _hook(node.test) == "now":
            self.inserted.append(node.test)
            return self.visit(node.body[0])
        if isinstance(node, ast.Call) and _hook(node) in WRAPPERS:
            self.inserted.append(node)
            node = node.args[1]
            return self.visit(node)
        return self.generic_visit(node)


def _hook(node: ast.AST) -> str | None:
    """The name of the hook that a call is one of; None if it is another call."""
    func = getattr(node, "func", None)
    of = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id
    return func.attr if isinstance(func, ast.Attribute) and of == "_cfac" else None


def unedited(tree: ast.Module, inserted: list[ast.AST] | None = None) -> ast.Module:
    """An edited tree without its edits, which are added to ``inserted``.  Uses up the tree."""
    _Unedited([] if inserted is None else inserted).visit(tree)
    return tree


def relocated(change: Change) -> ast.Module:
    """The tree that the hook compiles, for a file of a compilation."""
    entry, _ = edited(change)
    assert change.before is not None
    return parse_edited(change.before, change.splices, entry["bom"], entry["encoding"])


def files(root: Path) -> dict[str, bytes]:
    """Every file below ``root``, without git's own."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git/" not in path.as_posix() and "__pycache__" not in path.parts
    }


def copy_engine(folder: Path, to: Path) -> Path:
    shutil.copytree(folder / "engine", to, ignore=shutil.ignore_patterns("__pycache__"))
    return to


def git(folder: Path, *arguments: str) -> None:
    config = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.autocrlf=false"]
    environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}
    done = subprocess.run(
        ["git", *config, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"git {arguments}: {done.stdout}{done.stderr}"


def commit_all(folder: Path) -> None:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "engine")


def make_engine(root: Path, main: str, version: str = "1.2.0") -> Path:
    """A package ``tiny`` with a module ``main`` in ``root``."""
    package = root / "tiny"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (package / "main.py").write_text(main)
    return root


SPEC = """\
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-start
engine: {package: tiny, versions: ">=1,<2"}
components:
  core:
    states: [Start, Ready]
bind:
  core.Ready: {publish: {in: "tiny.main:run", at: after, call: work}}
"""
MAIN = "def run():\n    work()\n    return 1\n\n\ndef work():\n    pass\n"
