"""Processes without names, as SGLang has: known by their functions, replicas by ``index``."""

from __future__ import annotations

import re

import tiny

from cfac.runtime.history import read_run

SPEC = (tiny.SOURCE / "startup.yaml").read_text("utf-8")


def without_names(engine) -> None:
    """Take the names out of the engine's own ``Process(...)`` calls."""
    count = 0
    for file in (engine / "tinyengine").glob("*.py"):
        text, found = re.subn(r',\s*name=(f?"[^"]*")', "", file.read_text("utf-8"))
        file.write_text(text)
        count += found
    assert count == 2


def unnamed(index: str) -> str:
    spec = re.sub(r"\n\s+name: TinyCore", "", SPEC).replace(', name: "TinyWorker-{i}"', "")
    spec = re.sub(r"  (core|worker)\.Start:\n    publish: .*\n", "", spec)
    for state in ("Constructed", "Ready"):
        old = f"  worker.{state}:\n"
        assert old in spec
        spec = spec.replace(old, f"{old}    index: {index}\n")
    return spec


def test_states_of_unnamed_processes_are_seen(tmp_path):
    engine = tiny.patched_copy(tmp_path / "engine", unnamed("rank"), without_names)
    runs = tmp_path / "runs"
    done = tiny.run(engine, runs, "--workers", "3", CFAC_OBSERVE="1")
    assert done.returncode == 0, done.stderr
    history = read_run(next(runs.glob("*/run.json")).parent)
    assert tiny.messages(history, chain=True) == []
    seen = {name for name in map(str, history.publishes) if "worker" in name}
    assert len(seen) == 9, seen  # a first state comes with the first event of its process
    assert "failed" not in [event["e"] for event in history.events]


def test_replicas_of_unnamed_processes_need_an_index(tmp_path):
    spec = re.sub(r"    index: rank\n", "", unnamed("rank"))
    engine = tiny.patched_copy(tmp_path / "engine", spec, without_names)
    done = tiny.run(engine, tmp_path / "runs", "--workers", "2", CFAC_OBSERVE="1")
    assert done.returncode == 0
    assert "worker has replicas, but no index is bound for Constructed" in done.stderr
