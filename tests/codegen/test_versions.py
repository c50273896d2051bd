"""Process names and modules that only some versions of an engine have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from codegen_support import compile_case, make_engine

from cfac.runtime.plan import Plan

NAMES = """\
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-start
engine: {{package: tiny, versions: ">=1,<3"}}
components:
  frontend: {{states: [Start, Up]}}
  core:
    process:
      spawned_by: frontend
      name: {names}
    states: [Start, Ready]
bind:
  frontend.Up: {{publish: {{in: "tiny.main:start", at: exit}}}}
  core.Ready: {{publish: {{in: "tiny.main:run", at: exit}}}}
"""
BOTH = '[{is: "Core_DP0", when: {version: "<2"}}, {is: Core, when: {version: ">=2"}}]'
OLD = 'def start(p):\n    p.Process(name=f"Core_DP{p.n}")\n\n\ndef run():\n    pass\n'
NEW = OLD.replace('{p.n}"', '{p.n}" if p.n else "Core"')


def compiled(folder: Path, spec: str, main: str, version: str):
    folder.mkdir(exist_ok=True)
    make_engine(folder / "engine", main, version)
    (folder / "spec.yaml").write_text(spec, "utf-8")
    return compile_case(folder)


@pytest.mark.parametrize(
    ("version", "main", "name"), [("1.5", OLD, "Core_DP0"), ("2.0", NEW, "Core")]
)
def test_a_process_has_the_name_of_its_version(tmp_path, version, main, name):
    result, text = compiled(tmp_path, NAMES.format(names=BOTH), main, version)
    assert result is not None and result.ok and not text, text
    assert json.loads(result.plan)["components"]["core"]["process"]["name"] == name


def test_a_name_of_no_version_or_of_two_is_an_error(tmp_path):
    none = '[{is: Core, when: {version: "<1"}}]'
    result, text = compiled(tmp_path / "none", NAMES.format(names=none), NEW, "2.0")
    assert result is not None and not result.ok
    assert (
        "spec.yaml:10:" in text and "none of the names of its process holds for version 2.0" in text
    )
    two = '[{is: Core, when: {version: ">=1"}}, {is: Other}]'
    result, text = compiled(tmp_path / "two", NAMES.format(names=two), NEW, "2.0")
    assert result is not None and not result.ok
    assert "2 of the names of its process hold for version 2.0" in text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("[{is: Core, when: {platform: linux}}]", "goes by the engine's version only"),
        ('[{when: {version: ">=1"}}]', "does not say what the name is"),
        ("[]", "expected at least one entry"),
        ("{is: Core}", "expected a process's name, or a list"),
        ("[{is: Core, wen: {}}]", "did you mean 'when'?"),
    ],
)
def test_names_in_a_wrong_form_are_errors(tmp_path, names, message):
    result, text = compiled(tmp_path, NAMES.format(names=names), NEW, "2.0")
    assert result is None
    assert message in text and "spec.yaml:10:" in text


def test_a_name_that_the_engine_does_not_give_is_a_warning(tmp_path):
    result, text = compiled(tmp_path, NAMES.format(names="Core"), OLD, "1.5")
    assert result is not None and result.ok
    assert "spec.yaml:10:13: warning[CF431]" in text
    assert "tiny/main.py:2: name=f'Core_DP{p.n}'" in text


@pytest.mark.parametrize("name", ["name", "'Worker-' + str(n)", "f'{n}'"])
def test_a_computed_name_does_not_stand_for_any(tmp_path, name):
    main = f"def start(p, n, name):\n    p.Process(name={name})\n\n\ndef run():\n    pass\n"
    result, text = compiled(tmp_path, NAMES.format(names="Core"), main, "1.5")
    assert result is not None and result.ok and "warning[CF431]" in text


def test_all_modules_that_are_gone_are_named_with_the_nearest(tmp_path):
    spec = """\
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-start
engine: {package: tiny, versions: ">=1,<3"}
components:
  core:
    states:
      - Start
      - Warm: {aux: true, does: {import: [json, tiny.mian, tiny.ext, tiny.ns, tiny.x]}}
      - Ready
bind:
  core.Warm: {publish: {in: "tiny.main:run", at: entry}}
  core.Ready: {publish: {in: "tiny.main:run", at: exit}}
"""
    package = make_engine(tmp_path / "engine", "def run():\n    pass\n", "1.0") / "tiny"
    (package / "ns").mkdir()
    (package / "ext.abi3.so").write_bytes(b"")
    (tmp_path / "spec.yaml").write_text(spec, "utf-8")
    result, text = compile_case(tmp_path)
    assert result is not None and not result.ok
    assert "error[CF432]: core.Warm imports tiny.mian, tiny.x, which tiny 1.0 does not have" in text
    assert "nearest to tiny.mian: tiny.main" in text


@pytest.mark.parametrize("attribute", ["size", "sizes"])
def test_an_attribute_that_nothing_has_is_a_warning(tmp_path, attribute):
    """It would raise where the parameter is read, and the early value would stay."""
    spec = f"""\
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-start
engine: {{package: tiny, versions: ">=1,<3"}}
params:
  n: {{type: int, default: 1, from: [{{value: config.parallel.{attribute}, at: core.Ready}}]}}
components:
  core: {{states: [Start, Ready]}}
bind:
  core.Ready: {{publish: {{in: "tiny.main:run", at: exit}}}}
"""
    main = "def run(config):\n    return config.parallel\n\n\nclass Parallel:\n    size: int\n"
    main = main.replace("return config.parallel", "config.parallel\n    return config")
    result, text = compiled(tmp_path, spec, main, "1.0")
    assert result is not None and result.ok
    assert ("warning[CF434]" in text) is (attribute == "sizes"), text
    if attribute == "sizes":
        assert "nothing in tiny 1.0 is called 'sizes'" in text and "spec.yaml:6:" in text


LATER = """\
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-start
engine: {package: tiny, versions: ">=1,<3"}
components:
  core: {states: [Start, {Ready: {after: helper.Up}}]}
  helper:
    when: {version: ">=2"}
    policy: {gc: frozen, until: Up}
    process:
      spawned_by: core
      name: Helper
      strategy: {fork: core.Start}
      start: {in: "tiny.main:helper", at: replace_callee, call: Process}
      stop: {in: "tiny.main:end", at: entry}
    states: [Start, {Warm: {aux: true, does: {import: [tiny.warm]}}}, Up]
bind:
  core.Start: {publish: {in: "tiny.main:run", at: entry}}
  core.Ready:
    begin: {in: "tiny.main:run", at: before, call: finish}
    publish: {in: "tiny.main:run", at: exit}
  helper.Up: {publish: {in: "tiny.main:up", at: exit}}
"""


def test_a_component_of_later_versions_needs_no_place_in_earlier_ones(tmp_path):
    """It is in the plan as one that is never there: who waits for it does not wait."""
    main = "def run():\n    finish()\n    return 1\n"
    result, text = compiled(tmp_path / "old", LATER, main, "1.5")
    assert result is not None and result.ok and not text, text
    assert (result.bound, result.declared) == (1, 1)
    plan = json.loads(result.plan)
    assert not Plan.of(plan).present("helper")
    assert b"helper" not in result.patch.split(b"_cfac/plan.json")[0]
    result, text = compiled(tmp_path / "new", LATER, main, "2.0")
    assert result is not None and not result.ok
    assert {"CF404", "CF432"} <= set(re.findall(r"error\[(\w+)\]", text))
    main += '\n\ndef up():\n    return 1\n\n\ndef helper():\n    Process(name="Helper")\n'
    make_engine(tmp_path / "whole/engine", f"{main}\n\ndef end():\n    pass\n", "2.0")
    (tmp_path / "whole/engine/tiny/warm.py").write_text("")
    (tmp_path / "whole/spec.yaml").write_text(LATER, "utf-8")
    result, text = compile_case(tmp_path / "whole")
    assert result is not None and result.ok and not text, text
    assert (result.bound, result.declared) == (3, 3)
