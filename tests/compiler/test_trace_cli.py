"""``cfac trace`` on runs made by ``cfac run``, and on folders that are no good."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded_runs import component, plan, write

from cfac.compiler.cli import cli

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples" / "quickstart"
FAILING = """
apiVersion: cfac/v1
kind: StartupGraph
name: failing
channel: {transport: process}
components:
  A: {states: [Start, A1]}
  B: {states: [Start, {B1: {after: A.A1}}]}
bind:
  A.A1: {run: "failing_steps:break_"}
"""
# B must be waiting by then
BREAK = "import time\ndef break_():\n    time.sleep(2)\n    raise OSError('the disk is gone')\n"


def record(runs, spec, cwd):
    """Run ``cfac run`` for real; the new run's folder."""
    result = subprocess.run(
        [sys.executable, "-m", "cfac.compiler.cli", "run", str(spec)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "CFAC_RUNS": str(runs)},
        cwd=cwd, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    number = re.search(r"cfac trace show (\S+)", result.stdout)
    assert number, result.stdout + result.stderr
    return runs / number[1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder of runs, and the runs by name."""
    work = tmp_path_factory.mktemp("work")
    runs = work / "runs"
    (work / "failing.yaml").write_text(FAILING)
    (work / "failing_steps.py").write_text(BREAK)
    names = ("threads", "processes", "coroutines")
    made = {name: record(runs, QUICKSTART / f"{name}.yaml", work) for name in names}
    made["failing"] = record(runs, work / "failing.yaml", work)
    return runs, made


@pytest.fixture
def trace(recorded, monkeypatch):
    monkeypatch.setenv("CFAC_RUNS", str(recorded[0]))
    monkeypatch.setenv("COLUMNS", "100")

    def invoke(*args, charset="utf-8"):
        return CliRunner(charset=charset).invoke(cli, ["trace", *map(str, args)])

    return invoke


# -- show ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["threads", "processes", "coroutines"])
def test_show(recorded, trace, name):
    run = recorded[1][name]
    result = trace("show", run.name)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith(f"run {run.name}") and lines[1].startswith("all 6 states in ")
    assert max(map(len, lines)) <= 100
    second = next(line for line in lines if line.startswith("  B2"))
    if name != "processes":  # whose births may lie further apart than the steps
        assert re.search(r"·+█+$", second)  # A1, which it waits for, takes longer than B1


def test_show_takes_the_latest_a_start_or_a_folder(recorded, trace):
    runs, made = recorded
    assert trace("show").output.startswith(f"run {sorted(p.name for p in runs.iterdir())[-1]}")
    number = made["processes"].name
    expected = trace("show", number).output
    assert trace("show", number[:-1]).output == expected
    assert trace("show", made["processes"]).output == expected


def test_show_a_failed_run(recorded, trace):
    result = trace("show", recorded[1]["failing"])
    assert result.exit_code == 0
    assert "NOT READY: 2 of 4 states" in result.output
    assert re.search(r"^failed, [\d.]+ s: A failed in state Start: .*disk is gone", result.output,
                     re.MULTILINE)  # fmt: skip
    assert "never reached: A.A1, B.B1" in result.output
    assert "still waiting: B.B1 for A.A1" in result.output


@pytest.mark.parametrize("charset", ["ascii", "latin-1"])
def test_show_without_utf8_is_plain_ascii(recorded, trace, charset):
    result = trace("show", recorded[1]["threads"], charset=charset)
    assert result.exit_code == 0 and result.stdout_bytes.isascii()
    assert re.search(rb"\.+#+", result.stdout_bytes)


def test_show_a_hostile_name_without_utf8(trace, tmp_path):
    events = [(1, {"e": "publish", "c": "kérn\x1b[31m", "i": None, "s": "Süß"})]
    result = trace("show", write(tmp_path / "run", None, events), charset="ascii")
    assert result.exit_code == 0 and result.stdout_bytes.isascii()
    assert b"\x1b" not in result.stdout_bytes and b"k\\xe9rn" in result.stdout_bytes


def test_show_skips_half_a_line(recorded, trace, tmp_path):
    copy = shutil.copytree(recorded[1]["processes"], tmp_path / "copy")
    files = {
        file: [json.loads(line) for line in file.read_text().splitlines()]
        for file in copy.glob("*.jsonl")
    }
    everything = [event for events in files.values() for event in events]
    ended = next(e["t"] for e in everything if e["e"] == "publish" and e["s"] == "A1")
    for file, events in files.items():
        for event in events:
            if event["e"] == "begin" and event["s"] == "B2":
                event["t"] = ended - 1_000_000
        file.write_text("".join(json.dumps(event) + "\n" for event in events))
    result = trace("verify", copy)
    assert result.exit_code == 1
    assert re.fullmatch(
        r"dependency: B\.B2 after A\.A1: it began [\d.]+ ms before A\.A1 ended\n", result.stderr
    )


# -- export -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, start",
    [("x.svg", "<svg"), ("x.HTML", "<!doctype"), ("x.json", '{"displayTimeUnit"'),
     ("x.trace", '{"displayTimeUnit"')],
)  # fmt: skip
def test_export_format_from_the_suffix(recorded, trace, tmp_path, name, start):
    result = trace("export", recorded[1]["threads"], "-o", tmp_path / name)
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / name).read_text("utf-8").startswith(start)


def test_export_before_and_after(recorded, trace):
    runs = [recorded[1][name] for name in ("processes", "threads", "failing")]
    result = trace("export", *runs, "-f", "svg", "--label", "before", "--label", "a <b>")
    assert result.exit_code == 0
    root = ET.fromstring(result.output)
    drawn = [g.get("data-run") for g in root.iter() if g.get("class") == "run"]
    titles = [t.text for t in root.iter() if t.get("class") == "title"]
    assert drawn == [run.name for run in runs]
    assert titles[0] == "before" and "a <b>" in titles and runs[2].name in titles


@pytest.mark.parametrize("charset", ["utf-8", "ascii"])
def test_export_to_standard_output_is_utf8(recorded, trace, charset):
    result = trace("export", recorded[1]["threads"], "-f", "html", charset=charset)
    assert result.exit_code == 0 and "<svg" in result.stdout_bytes.decode("utf-8")


def test_export_perfetto_is_the_default(recorded, trace):
    data = json.loads(trace("export", recorded[1]["processes"]).output)
    names = [event["args"]["name"] for event in data["traceEvents"] if event["ph"] == "M"
             and event["name"] == "thread_name"]  # fmt: skip
    assert sorted(names) == ["A", "B", "cfac run"]


def test_export_too_many_labels(recorded, trace):
    result = trace("export", recorded[1]["threads"], "--label", "a", "--label", "b")
    assert result.exit_code == 2 and "2 labels for 1 runs" in result.output


def test_export_where_nothing_can_be_written(recorded, trace, tmp_path):
    result = trace("export", recorded[1]["threads"], "-o", tmp_path / "no" / "x.svg")
    assert result.exit_code == 1
    assert result.output.startswith("Error: Could not open file") and len(_errors(result)) == 1


# -- runs that cannot be read ---------------------------------------------------------


def _errors(result):
    return result.output.strip().splitlines()


def damage(folder, what):
    made = plan({"a": component(["Start", "One"])})
    write(folder, made, ["publish a.Start", "publish a.One"])
    if what == "empty folder":
        for file in folder.iterdir():
            file.unlink()
    elif what == "run.json cut":
        (folder / "run.json").write_text('{"id": "x"')
    elif what == "run.json empty object":
        (folder / "run.json").write_text("{}")
    elif what == "plan of another version":
        (folder / "plan.json").write_text('{"cfac": 99}')
    elif what == "plan cut":
        (folder / "plan.json").write_text('{"cfac": 1, "params": {}}')
    elif what == "event is a list":
        (folder / "7.jsonl").write_text("[1]\n")
    elif what == "event without time":
        (folder / "7.jsonl").write_text('{"e":"note"}\n{"t":1,"e":"note","text":"x"}\n')
    elif what == "event without component":
        (folder / "7.jsonl").write_text('{"t":1,"e":"publish"}\n')
    elif what == "binary":
        (folder / "7.jsonl").write_bytes(bytes(range(256)) * 4)
    return folder


DAMAGE = ["empty folder", "run.json cut", "run.json empty object", "plan of another version",
          "plan cut"]  # fmt: skip
BAD_LINES = ["binary", "event is a list", "event without time", "event without component"]


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_damaged_folder_is_one_clear_line(trace, tmp_path, command, what):
    result = trace(command, damage(tmp_path / "run", what))
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    (line,) = _errors(result)
    assert line.startswith("Error: ") and "run" in line


@pytest.mark.parametrize("what", BAD_LINES)
def test_rubbish_is_damaged_lines(trace, tmp_path, what):
    folder = damage(tmp_path / "run", what)
    assert trace("show", folder).exit_code == 0
    assert "trace: a line is damaged: 7.jsonl:1\n" in trace("verify", folder).output


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_unknown_runs(trace, recorded, command, tmp_path, monkeypatch):
    result = trace(command, "nosuchrun")
    assert result.exit_code == 1
    assert _errors(result) == [f"Error: no run in {recorded[0]} is called 'nosuchrun'"]
    result = trace(command, "2")
    assert _errors(result) == [f"Error: 4 runs in {recorded[0]} are called '2'"]
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path / "none"))
    result = trace(command)
    assert result.exit_code == 1
    assert _errors(result) == [f"Error: no runs are recorded in {tmp_path / 'none'}"]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path / "file"))
    result = trace(command)
    assert result.exit_code == 1 and len(_errors(result)) == 1
