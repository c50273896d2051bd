"""A recording in the engine's patch: its version, its hash, what is out of date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from codegen_support import compile_case

from cfac.compiler.cli import cli

SPEC = """\
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-start
engine: {package: tiny, versions: ">=1,<2"}
components:
  core:
    states: [Start, {Imported: {aux: true, does: {import: recorded}}}, Ready]
bind:
  core.Imported: {publish: {in: "tiny.main:run", at: entry}}
  core.Ready: {publish: {in: "tiny.main:run", at: exit}}
"""


def record(folder: Path, version: str | None, *modules: str) -> None:
    data = {
        "cfac": 1,
        "kind": "Imports",
        "runs": 1,
        "engine": {"package": "tiny", "version": version},
        "components": {"core": [{"until": "Ready", "modules": list(modules)}]},
    }
    (folder / "spec.imports.json").write_text(json.dumps(data), "utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "engine" / "tiny"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.1"\n')
    (package / "main.py").write_text("def run():\n    load()\n")
    (tmp_path / "spec.yaml").write_text(SPEC, "utf-8")
    record(tmp_path, "1.1", "json")
    return tmp_path


@pytest.mark.parametrize(("version", "warned"), [("1.0", True), ("1.1", False), (None, False)])
def test_a_recording_of_another_version_is_a_warning(
    folder: Path, version: str | None, warned: bool
) -> None:
    record(folder, version, "json")
    result, text = compile_case(folder)
    assert result is not None and result.ok and result.patch
    assert ("warning[CF418]" in text) is warned, text
    if warned:
        assert "spec.yaml:7:59" in text and "tiny 1.0, and this is 1.1" in text


def test_check_notices_a_changed_recording(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    runner = CliRunner()
    compile_ = ["compile", "spec.yaml", "--engine", "engine"]
    assert runner.invoke(cli, compile_).exit_code == 0
    assert runner.invoke(cli, [*compile_, "--check"]).exit_code == 0
    text = Path("spec.imports.json").read_text("utf-8")
    Path("spec.imports.json").write_text(text + "\n", "utf-8")  # the modules are the same
    result = runner.invoke(cli, [*compile_, "--check"])
    assert result.exit_code == 3 and "tiny-start.plan.json: out of date" in result.output
