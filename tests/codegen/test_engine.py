"""Finding engine trees and their versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from codegen_support import MAIN, SPEC, make_engine

from cfac.codegen.engine import Engine, find_engine, read_version
from cfac.compiler.api import load
from cfac.compiler.diagnostics import Diagnostics


def find(tmp_path: Path, path: Path | None, start: Path | None = None) -> Engine | list[str]:
    (tmp_path / "specs").mkdir(exist_ok=True)
    (tmp_path / "specs" / "spec.yaml").write_text(SPEC)
    spec, _ = load(tmp_path / "specs" / "spec.yaml")
    assert spec is not None
    diagnostics = Diagnostics()
    engine = find_engine(spec, path, diagnostics, start=start or tmp_path / "specs")
    return engine or [f"{item.code}: {item.message}" for item in diagnostics]


@pytest.mark.parametrize("layout", ["", "src", "python", "lib/python3.12/site-packages"])
def test_layouts(tmp_path: Path, layout: str) -> None:
    root = make_engine(tmp_path / "fork" / layout, MAIN)
    for path in (tmp_path / "fork", root, root / "tiny"):
        engine = find(tmp_path, path)
        assert isinstance(engine, Engine)
        assert (engine.root, engine.version) == (root, "1.2.0")


def test_enclosing(tmp_path: Path) -> None:
    root = make_engine(tmp_path / "fork", MAIN)
    engine = find(tmp_path, None, root / "tiny")
    assert isinstance(engine, Engine)
    assert (engine.root, engine.origin) == (root, "enclosing folder")
    (root / "docs" / ".git").mkdir(parents=True)  # the search ends at a checkout's top
    assert find(tmp_path, None, root / "docs")[0].startswith("CF401")  # type: ignore[index]


def test_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = find(tmp_path, tmp_path / "empty")
    assert isinstance(found, list) and found[0].startswith("CF401: no package 'tiny' in")


def test_versions(tmp_path: Path) -> None:
    root = make_engine(tmp_path / "e", MAIN, version="9")
    assert read_version(root, "tiny") == "9"
    (root / "pyproject.toml").write_text('[project]\nname = "tiny"\nversion = "3"\n')
    assert read_version(root, "tiny") == "9"
    (root / "tiny/__init__.py").write_text("from .version import *\n")
    assert read_version(root, "tiny") == "3"
    (root / "tiny/version.py").write_text("version: str\n__version__ = version = '1.3.1.dev2+g1'\n")
    assert read_version(root, "tiny") == "1.3.1.dev2"
    record = "tiny/__init__.py,sha256=x,1\n"
    for name, version in (("tiny_cpu", "1.7"), ("tiny", "1.8+cpu"), ("tiny_extra", "5")):
        info = root / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n\nVersion: 0\n")
        (info / "RECORD").write_text(record if name != "tiny_extra" else "x,,\n")
        assert read_version(root, "tiny") == {"tiny_cpu": "1.7"}.get(name, "1.8")


def test_unknown_version(tmp_path: Path) -> None:
    root = make_engine(tmp_path / "e", MAIN)
    (root / "tiny/__init__.py").write_text("")
    found = find(tmp_path, root)
    assert isinstance(found, list) and found[0].startswith("CF402: the version of 'tiny'")
    (root / "tiny/__init__.py").write_text("__version__ = '2.0'\n")
    found = find(tmp_path, root)
    assert isinstance(found, list) and "outside of the versions" in found[0]
