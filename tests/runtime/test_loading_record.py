"""What a load leaves in the trace of its run, and how that is drawn."""

from __future__ import annotations

import json
import os

import checkpoints
import pytest
from recorded_runs import component, plan, write

import cfac
from cfac.compiler.draw import timeline, timeline_perfetto, timeline_text
from cfac.runtime.history import read_run
from cfac.runtime.loading.record import record_load, recording
from cfac.runtime.run import ENVIRONMENT, Run
from cfac.runtime.verify import verify


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a run that this process belongs to."""
    made = plan({"a": component(["One", "Two"])})
    folder = write(tmp_path / "run", made, ["publish a.One", "publish a.Two"])
    monkeypatch.setenv(ENVIRONMENT, Run("made", "token", str(folder)).environment())
    return folder


@pytest.fixture
def model(tmp_path):
    tensors = checkpoints.filled(1, *[20_000] * 30)
    return checkpoints.write(tmp_path / "model.safetensors", tensors)


def test_every_chunk_with_the_times_of_its_states(run, model):
    assert recording()
    with cfac.load(model, chunk_size=65536, trace=True) as loader:
        for _ in loader:
            pass
        record_load(loader)
        chunks = loader.report.chunk_paths
    history = read_run(run)
    assert history.damaged == [] and verify(history) == []
    (event,) = history.of("chunks")
    assert event["files"] == [str(model)] and event["pid"] == os.getpid()
    assert [tuple(row[1:4]) for row in event["rows"]] == [chunk[1:] for chunk in chunks]
    assert sum(row[2] for row in event["rows"]) == 30 * 80_000
    for _, _, _, _, begin, in_mem, placed, destroyed in event["rows"]:
        assert begin <= in_mem <= destroyed and (placed is None or in_mem <= placed <= destroyed)
    (note,) = history.of("note")
    assert "loaded 30 tensors, 0.002 GB from 1 files" in note["text"]
    assert "loaded 30 tensors" in timeline_text.render(timeline.read(history), 100)


def test_chunks_are_spans_in_perfetto(run, model):
    with cfac.load(model, chunk_size=65536, trace=True) as loader:
        for _ in range(2):  # a second load is told apart
            list(loader)
            record_load(loader)
    events = json.loads(timeline_perfetto.render([timeline.read(read_run(run))]))["traceEvents"]
    begins = {e["id"]: e for e in events if e["ph"] == "b"}
    ends = {e["id"]: e for e in events if e["ph"] == "e"}
    assert begins.keys() == ends.keys() and len(begins) == sum(e["ph"] == "b" for e in events)
    assert all(begins[key]["ts"] <= ends[key]["ts"] for key in begins)
    reads = [e["args"] for e in begins.values() if e["name"].startswith("read, ")]
    assert sum(args["length"] for args in reads) == 2 * 30 * 80_000
    assert {args["file"] for args in reads} == {"model.safetensors"}


def test_a_process_is_told_of_once(run, model):
    with cfac.load(model, trace=True) as loader:
        list(loader)
        record_load(loader)
        record_load(loader)
    told = [e["pid"] for e in read_run(run).of("process")]
    assert told.count(os.getpid()) == 1


def test_without_a_run_nothing_is_recorded(model, monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert not recording()
    with cfac.load(model, trace=True) as loader:
        list(loader)
        record_load(loader)


def test_a_run_folder_that_is_gone_does_not_fail_the_load(run, model, monkeypatch, caplog):
    monkeypatch.setenv(ENVIRONMENT, "made:token:/nowhere/at/all")
    with cfac.load(model, trace=True) as loader:
        list(loader)
        record_load(loader)
    assert "the trace ends here" in caplog.text
