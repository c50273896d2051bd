"""What --allow-partial leaves out, what it says of it, and what it never leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from codegen_support import compile_case

from cfac.codegen.apply import apply
from cfac.compiler.cli import cli

SPEC = """\
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-start
engine: {package: tiny, versions: ">=1,<2"}
components:
  frontend:
    policy: {gc: frozen, until: Idle}
    states:
      - Start
      - Common: {aux: true, does: {import: [tiny.common]}}
      - Config
      - Idle: {aux: true, idle: {while: core.Ready, import: [json, tiny.http]}}
      - Up: {after: core.Ready}
  core:
    process:
      spawned_by: frontend
      name: Core
      strategy: {fork: frontend.Common}
      start: {in: "tiny.main:spawn", at: replace_callee, call: ctx.Process}
    states:
      - Start
      - Imported: {aux: true, does: {import: [tiny.core]}}
      - Taken: {after: frontend.Config}
      - Ready: {after: [{state: frontend.Idle, schedule: true}]}
chain: [frontend.Config, core.Taken, core.Ready, frontend.Up]
bind:
  frontend.Start: {publish: {in: "tiny.main:main", at: entry}}
  frontend.Common: {publish: {in: "tiny.main:main", at: before, call: configure}}
  frontend.Config: {publish: {in: "tiny.main:main", at: after, call: configure}}
  frontend.Idle: {publish: {in: "tiny.main:main", at: before, call: poll}}
  frontend.Up:
    begin: {in: "tiny.main:main", at: after, call: poll}
    publish: {in: "tiny.main:main", at: exit}
  core.Taken:
    begin: {in: "tiny.core:run", at: entry}
    publish: {in: "tiny.core:run", at: before, call: work}
  core.Ready:
    wait: {in: "tiny.core:run", at: after, call: work}
    publish: {in: "tiny.core:run", at: exit}
"""
MAIN = """\
def main(ctx):
    config = configure()
    spawn(ctx, config)
    poll()
    return config


def configure():
    return 1


def spawn(ctx, config):
    ctx.Process(target=print, name="Core").start()


def poll():
    pass
"""
CORE = "def run(config):\n    work(config)\n    return config\n\n\ndef work(config):\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "engine" / "tiny"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.1"\n')
    (package / "main.py").write_text(MAIN)
    (package / "core.py").write_text(CORE)
    for module in ("common", "http"):
        (package / f"{module}.py").write_text("")
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


def change(folder: Path, old: str, new: str, file: str = "main.py") -> None:
    path = folder / "engine" / "tiny" / file if file.endswith(".py") else folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def plan_of(result) -> dict:
    assert result is not None and result.ok
    return json.loads(result.plan)


def test_a_spec_that_binds_is_the_same_with_and_without(folder):
    whole, text = compile_case(folder)
    assert whole is not None and whole.ok and not text, text
    partial, text = compile_case(folder, allow_partial=True)
    assert partial is not None and partial.losses == () and not text
    assert (partial.patch, partial.report) == (whole.patch, whole.report)


def test_an_import_that_is_gone_leaves_the_rest(folder):
    (folder / "engine" / "tiny" / "http.py").unlink()
    refused, text = compile_case(folder)
    assert refused is not None and not refused.ok and not refused.patch
    assert "error[CF432]: frontend.Idle imports tiny.http" in text
    assert "--allow-partial leaves it out: frontend.Idle does not import tiny.http early" in text
    result, text = compile_case(folder, allow_partial=True)
    assert "warning[CF433]: left out: frontend.Idle does not import tiny.http early" in text
    assert plan_of(result)["transitions"]["frontend.Idle"]["imports"] == ["json"]
    assert (result.bound, result.declared) == (7, 7)
    assert "## Left out\n\n- frontend.Idle does not import tiny.http early: " in result.report


def test_an_auxiliary_state_goes_and_its_orders_stay(folder):
    """Who waited for it waits for the state before it; what it ended ends after it."""
    change(folder, "    poll()\n", "    wait_for_core()\n")
    change(folder, "call: poll}\n    publish", "call: wait_for_core}\n    publish", "spec.yaml")
    result, text = compile_case(folder, allow_partial=True)
    plan = plan_of(result)
    assert plan["components"]["frontend"]["states"] == ["Start", "Common", "Config", "Up"]
    assert plan["components"]["frontend"]["policy"]["until"] == "Up"
    after = plan["transitions"]["core.Ready"]["after"]
    assert [(d["component"], d["state"], d["schedule"]) for d in after] == [
        ("frontend", "Config", True)
    ]
    assert "left out: no frontend.Idle: early imports (json, tiny.http)" in text
    assert (result.bound, result.declared) == (6, 7)


def test_without_its_state_a_fork_is_the_engines_own_start(folder):
    change(folder, "configure()\n    spawn", "make()\n    spawn")
    change(folder, "after, call: configure", "after, call: make", "spec.yaml")
    result, text = compile_case(folder, allow_partial=True)
    plan = plan_of(result)
    assert plan["components"]["core"]["states"] == ["Start", "Taken", "Ready"]
    process = plan["components"]["core"]["process"]
    assert (process["strategy"], process["start"]) == ("engine", False)
    assert b"_cfac.start(" not in result.patch
    assert text.count("warning[CF433]") == 3
    assert "core is not forked early: the engine starts it in its own time" in text
    assert "no core.Imported: early imports (tiny.core)" in text


def test_without_the_place_that_makes_the_process_it_is_not_forked(folder):
    change(folder, "ctx.Process(", "ctx.make_process(")
    change(folder, 'name="Core")', 'name="Core")  # not a Process')
    result, text = compile_case(folder, allow_partial=True)
    plan = plan_of(result)
    assert plan["components"]["core"]["process"]["strategy"] == "engine"
    assert plan["components"]["frontend"]["states"][1] == "Common"
    assert "error[CF405]" not in text and "ctx.Process not found" in text


def test_an_order_for_speed_is_left_out(folder):
    spec = (folder / "spec.yaml").read_text().replace("after, call: work}", "after, call: w}")
    (folder / "spec.yaml").write_text(spec)
    result, text = compile_case(folder, allow_partial=True)
    assert plan_of(result)["transitions"]["core.Ready"]["after"] == []
    assert b"_cfac.wait(" not in result.patch
    assert "left out: core.Ready does not wait for frontend.Idle" in text


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("after, call: configure", "after, call: x", "a stock state"),
        ("after, call: poll", "after, call: x", "the poll of a wait that is needed"),
        ('{in: "tiny.core:run", at: entry}', '{in: "tiny.core:go", at: entry}', "a begin"),
        (
            "aux: true, idle: {while: core.Ready,",
            "aux: true, after: core.Taken, idle: {while: core.Ready,",
            "an order",
        ),
    ],
)
def test_what_correctness_needs_is_never_left_out(folder, old, new, what):
    change(folder, old, new, "spec.yaml")
    if what == "an order":
        begin = "begin: {in: 'tiny.main:main', at: entry}, "
        change(folder, "Idle: {publish", "Idle: {" + begin + "publish", "spec.yaml")
        change(folder, "before, call: poll", "before, call: x", "spec.yaml")
    result, text = compile_case(folder, allow_partial=True)
    assert result is not None
    assert not result.ok and not result.patch and result.losses == ()
    assert "error[CF40" in text and "--allow-partial" not in text


def test_an_error_beside_it_is_still_an_error(folder):
    (folder / "engine" / "tiny" / "http.py").unlink()
    change(folder, "after, call: configure", "after, call: x", "spec.yaml")
    result, text = compile_case(folder, allow_partial=True)
    assert result is not None and not result.ok and not result.patch
    assert "error[CF405]" in text and "warning[CF433]" in text


def test_the_commands_count_what_is_left_out(folder, monkeypatch):
    (folder / "engine" / "tiny" / "http.py").unlink()
    monkeypatch.chdir(folder)
    runner = CliRunner()
    arguments = ["compile", "spec.yaml", "--engine", "engine"]
    assert runner.invoke(cli, arguments).exit_code == 1
    assert not Path("patches").exists()
    done = runner.invoke(cli, [*arguments, "--allow-partial"])
    assert done.exit_code == 0, done.output
    assert "7 of 7 transitions bound, 4 files, 1 left out" in done.output
    assert runner.invoke(cli, [*arguments, "--allow-partial", "--check"]).exit_code == 0
    assert runner.invoke(cli, [*arguments, "--check"]).exit_code == 1
    checked = runner.invoke(cli, ["check", "spec.yaml", "--engine", "engine", "--allow-partial"])
    assert checked.exit_code == 0 and "in tiny 1.1, 1 left out" in checked.output
    apply(Path("patches/tiny-start.patch").read_bytes(), Path("engine"))


def test_a_construct_of_other_versions_is_left_out_and_a_mistake_is_not(folder):
    """No site for this version is the version's doing; two for one is the spec's."""
    at = 'at: before, call: poll, when: {version: ">=2"}}'
    change(folder, "at: before, call: poll}", at, "spec.yaml")
    result, text = compile_case(folder, allow_partial=True)
    assert result is not None and result.ok and "left out: no frontend.Idle" in text
    both = '{in: "tiny.main:main", at: entry}, {in: "tiny.main:main", at: exit}'
    change(folder, '{in: "tiny.main:main", ' + at, f"[{both}]", "spec.yaml")
    result, text = compile_case(folder, allow_partial=True)
    assert result is not None and not result.ok and result.losses == ()
    assert "two publish sites can apply in the same configuration" in text


def test_deferred_work_without_its_place_is_done_in_place(folder):
    """The modules that are there keep it; one that matches nothing loses all of it."""
    spec = folder / "spec.yaml"
    spec.write_text(
        SPEC
        + """defer:
  - {decorator: slow.compile, in: [tiny.common, tiny.gone, tiny.lost, other.module]}
  - {call: patch_all, in: tiny.http, until: json}
"""
    )
    (folder / "engine/tiny/common.py").write_text("@slow.compile\ndef f():\n    pass\n")
    refused, text = compile_case(folder)
    assert refused is not None and not refused.ok
    assert "error[CF403]: defer slow.compile: no module 'tiny.gone'" in text
    assert "error[CF405]: defer: no call patch_all runs at the import of tiny.http" in text
    assert text.count("--allow-partial leaves it out: ") == 2
    result, text = compile_case(folder, allow_partial=True)
    assert "left out: decorator slow.compile is not deferred in tiny.gone, tiny.lost" in text
    assert "left out: call patch_all is not deferred in tiny.http" in text
    assert plan_of(result)["engine"]["deferred"] == [["slow.compile", "other.module"]]
    assert result.patch.count(b"_cfac.deferred(") == 1 and b"_cfac.later(" not in result.patch
