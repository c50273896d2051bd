"""An engine bump under a committed patch: what moved, changed and vanished, and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from codegen_support import files

from cfac.compiler.cli import cli

SPEC = """\
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-start
engine: {package: tiny, versions: ">=1,<2"}
components:
  core:
    states: [Start, Loaded, Ready, Served]
bind:
  core.Loaded: {publish: {in: "tiny.main:run", at: after, call: load_weights}}
  core.Ready: {publish: {in: "tiny.main:run", at: after, call: warm_up_kernels}}
  core.Served: {publish: {in: "tiny.serve:serve", at: exit}}
"""
MAIN = '''\
def run(config):
    """Start."""
    weights = load_weights(config.model_path)
    tokenizer = make_tokenizer(config)
    check_configuration(config, weights, tokenizer)
    warm_up_kernels(weights, config.batch_sizes)
    return weights


def load_weights(path):
    return path
'''
SERVE = """\
def serve(engine):
    engine.listen()
    engine.announce()
"""


@pytest.fixture
def fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a spec and its committed patch."""
    root = tmp_path / "fork"
    (root / "tiny").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "start.yaml").write_text(SPEC)
    bump(root, "1.2.0", MAIN, SERVE)
    monkeypatch.chdir(root)
    assert run("compile").exit_code == 0
    return root


def bump(root: Path, version: str, main: str = MAIN, serve: str = SERVE) -> None:
    (root / "tiny/__init__.py").write_text(f'__version__ = "{version}"\n')
    (root / "tiny/main.py").write_text(main)
    (root / "tiny/serve.py").write_text(serve)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


def diff(*arguments: str) -> dict:
    done = run("diff", *arguments, "--format", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def statuses(found: dict) -> dict[str, str]:
    return {entry["transition"]: entry["status"] for entry in found["anchors"]}


def test_what_only_moved_is_explained_and_written(fork: Path) -> None:
    bump(fork, "1.3.0", MAIN.replace('"""Start."""', '"""Start,\n    slowly."""  # new'))
    before = files(fork)
    done = run("compile", "--check")
    assert done.exit_code == 3
    assert "tiny 1.2.0 -> 1.3.0: 3 anchors: 1 same, 2 moved" in done.output
    assert "moved    core.Loaded publish  tiny/main.py:3 -> 4" in done.output
    assert files(fork) == before
    done = run("compile", "--update")
    assert done.exit_code == 0, done.output
    assert "3 of 3 transitions bound" in done.output
    assert run("compile", "--check").exit_code == 0
    assert json.loads((fork / "patches/tiny-start.lock").read_text())["engine"]["version"] == (
        "1.3.0"
    )


def test_a_changed_function_is_explained_and_not_written(fork: Path) -> None:
    main = MAIN.replace(
        "    warm_up_kernels(weights, config.batch_sizes)\n",
        "    warm_up_kernels(weights, config.sizes)\n    join_workers()\n",
    )
    bump(fork, "1.3.0", main)
    before = files(fork)
    done = run("compile", "--update")
    assert done.exit_code == 3
    assert files(fork) == before
    assert "nothing was written" in done.output
    assert "tiny.main:run: 73% of its statements are the same, 2 added, 1 removed" in done.output
    assert "  -    warm_up_kernels(weights, config.batch_sizes)\n" in done.output
    assert "  +    join_workers()\n" in done.output
    assert "at: warm_up_kernels(weights, config.batch_sizes)" in done.output
    assert "now at: warm_up_kernels(weights, config.sizes)" in done.output
    assert run("compile", "--check").exit_code == 3
    assert run("compile", "--accept").exit_code == 0
    assert run("compile", "--check").exit_code == 0
    assert run("compile", "--update").exit_code == 0


def test_anchors_that_change_places_are_named(fork: Path) -> None:
    lines = MAIN.splitlines(keepends=True)
    lines[2], lines[5] = lines[5], lines[2]
    bump(fork, "1.3.0", "".join(lines))
    done = run("compile", "--check")
    assert "stands on the other side of core.Ready publish now" in done.output
    assert "stands on the other side of core.Loaded publish now" in done.output


def test_a_vanished_statement_has_candidates_with_a_similarity(fork: Path) -> None:
    bump(fork, "1.3.0", MAIN.replace("warm_up_kernels(", "warm_up_all_kernels("))
    before = files(fork)
    done = run("compile", "--check")
    assert done.exit_code == 1
    assert "error[CF405]" in done.output
    assert "vanished core.Ready publish   tiny/main.py:6" in done.output
    assert "was at: warm_up_kernels(weights, config.batch_sizes)" in done.output
    near = "tiny/main.py:6: warm_up_all_kernels(weights, config.batch_sizes)"
    assert f"nearest statement (96%): {near}" in done.output
    assert run("compile", "--update").exit_code == 1
    assert files(fork) == before


def test_a_function_that_moved_to_another_file_and_name_is_found(fork: Path) -> None:
    main, _, rest = MAIN.partition("\n\n\ndef load_weights")
    (fork / "tiny/starting.py").write_text(
        "import os\n\n\nclass Starter:\n"
        + "".join(
            f"    {line}\n" if line else "\n"
            for line in main.replace("def run(", "def start_all(").splitlines()
        )
    )
    bump(fork, "1.3.0", "def load_weights" + rest)
    done = run("compile", "--check")
    assert done.exit_code == 1
    assert "nearest function (100%): tiny/starting.py:5: tiny.starting:Starter.start_all" in (
        done.output
    )


def test_a_version_out_of_range_is_explained_too(fork: Path) -> None:
    bump(fork, "2.0.0", "# moved\n" + MAIN)
    done = run("compile", "--check")
    assert done.exit_code == 1
    assert "error[CF402]" in done.output
    assert "tiny 1.2.0 -> 2.0.0: 3 anchors: 1 same, 2 moved" in done.output


def test_a_patched_tree_is_compared_as_if_it_were_not(fork: Path) -> None:
    assert run("apply", "patches/tiny-start.patch").exit_code == 0
    done = run("compile", "--check")
    assert done.exit_code == 0
    assert "moved" not in done.output


def test_a_lock_of_the_first_form(fork: Path) -> None:
    lock = json.loads((fork / "patches/tiny-start.lock").read_text())
    old = {
        "cfac-lock": 1,
        "engine": lock["engine"],
        "functions": {k: v["fingerprint"] for k, v in lock["functions"].items()},
        "spec": lock["spec"],
    }
    (fork / "patches/tiny-start.lock").write_text(json.dumps(old))
    bump(fork, "1.3.0", MAIN.replace("tokenizer = make_tokenizer(config)", "tokenizer = None"))
    done = run("compile", "--check")
    assert "1 same, 2 changed" in done.output
    assert "tiny.main:run: changed; how it was is not in the lock" in done.output


@pytest.mark.parametrize("lock", ["", "{", "[]", '{"functions": {"a": 1}}', '{"anchors": [1]}'])
def test_a_broken_lock(fork: Path, lock: str) -> None:
    (fork / "patches/tiny-start.lock").write_text(lock)
    assert run("compile", "--check").exit_code == 3
    assert run("compile").exit_code == 0
    assert run("compile", "--check").exit_code == 0


def test_diff_of_trees_and_of_a_lock(fork: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "tiny").mkdir(parents=True)
    bump(other, "9.0", MAIN.replace("warm_up_kernels(", "warm("), "\n" + SERVE)
    wanted = {"core.Loaded": "changed", "core.Ready": "vanished", "core.Served": "moved"}
    trees = diff(".", str(other))
    assert statuses(trees) == wanted
    assert trees["engine"] == {"package": "tiny", "old": "1.2.0", "new": "9.0"}
    assert trees["functions"]["tiny.main:run"][-2:] == [
        "+    warm(weights, config.batch_sizes)",
        "     return weights",
    ]
    lock = diff("patches/tiny-start.lock", str(other), "--spec", "start.yaml")
    assert lock == trees
    text = run("diff", ".", str(other)).stdout
    assert "1 moved, 1 changed, 1 vanished" in text
    assert run("diff", ".", ".", "--exit-code").exit_code == 0
    assert run("diff", ".", str(other), "--exit-code").exit_code == 3
    back = diff(str(other), ".")
    assert statuses(back)["core.Ready"] == "added"


def test_diff_of_specs(fork: Path) -> None:
    other = SPEC.replace("Loaded, Ready", "Loaded, {Ready: {after: io.Up}}").replace(
        "bind:",
        "  io: {states: [Start, Up]}\nbind:\n"
        '  io.Up: {publish: {in: "tiny.serve:serve", at: entry}}',
    )
    other = other.replace(
        ", call: warm_up_kernels}}",
        ', call: warm_up_kernels}, begin: {in: "tiny.main:run", at: entry}}',
    )
    other = other.replace("at: after, call: load_weights", "at: before, call: load_weights")
    (fork / "new.yaml").write_text("# a comment\n" + other)
    found = diff("start.yaml", "new.yaml")["differences"]
    assert [(d["status"], d["kind"], d["name"]) for d in found] == [
        ("changed", "site", "core.Loaded publish"),
        ("added", "dependency", "core.Ready after io.Up"),
        ("added", "component", "io"),
        ("added", "state", "io.Start"),
        ("added", "state", "io.Up"),
        ("added", "site", "io.Up publish"),
        ("added", "site", "core.Ready begin"),
    ]
    assert found[0]["new"]["at"] == "new.yaml:12:31"
    text = run("diff", "start.yaml", "new.yaml").stdout
    assert "added    dependency core.Ready after io.Up\n" in text
    assert run("diff", "start.yaml", "start.yaml").stdout == "no difference\n"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["start.yaml", "."], "cannot compare a spec with a tree"),
        ([".", "start.yaml"], "cannot compare a tree with a spec"),
        (["empty.lock", "."], "is no lock file"),
        (["bad.yaml", "start.yaml"], "error[CF1"),
        ([".", "patches"], "error[CF401]"),
    ],
)
def test_diff_of_the_wrong_things(fork: Path, arguments: list[str], said: str) -> None:
    (fork / "empty.lock").write_text("{}")
    (fork / "bad.yaml").write_text("kind: [")
    done = run("diff", *arguments)
    assert done.exit_code in (1, 2)
    assert said in done.output


def test_update_needs_no_other_flag(fork: Path) -> None:
    done = run("compile", "--update", "--check")
    assert done.exit_code == 2
    assert "--update excludes --check" in done.output
