"""Recording a start of the tiny engine, and starting it with what was recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

FAST = (tiny.SOURCE / "fast.yaml").read_text()
RECORDED = FAST.replace("[tinyengine.core, tinyengine.worker]", "recorded").replace(
    "[decimal]", "recorded"
)
#: A program that starts the engine, uses it, and stays until it is told to stop.
PROGRAM = """\
import sys, time
from tinyengine.frontend import Engine

if __name__ == "__main__":
    engine = Engine(2)
    import colorsys, wave
    engine.add([1, 2])
    import sndhdr  # the very last one is told at the exit
    if "--then" in sys.argv:
        open("serving", "w").close()
    time.sleep(60)
"""


def cfac(engine, *arguments, runs=None, **extra):
    """The real command, in the engine's folder."""
    environment = tiny.environment(runs or engine / "runs", **extra)
    environment["PYTHONPATH"] = os.pathsep.join([str(tiny.ROOT), str(engine)])
    return subprocess.run(
        [sys.executable, "-m", "cfac.compiler.cli", *map(str, arguments)],
        cwd=engine,
        env=environment,
        capture_output=True,
        text=True,
        timeout=tiny.PATIENCE,
    )


def edit(engine):
    """Let the core and the workers import something of their own, late."""
    core, worker = (engine / "tinyengine" / f"{name}.py" for name in ("core", "worker"))
    slow = "    time.sleep(settings.SLOW)\n"
    core.write_text(core.read_text().replace(slow, "    import plistlib\n\n" + slow, 1))
    load = "    worker.load()\n"
    late = "    import tinyengine.runner, tinyengine.threads\n"
    worker.write_text(worker.read_text().replace(load, load + late))
    (engine / "tinyengine" / "runner.py").write_text("import cmd\n\nimport tinyengine.part\n")
    (engine / "tinyengine" / "part.py").write_text("")
    (engine / "tinyengine" / "threads.py").write_text(
        "import threading, time\n\n"
        "threading.Thread(target=time.sleep, args=(0,)).start()\n"
        "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    )
    (engine / "program.py").write_text(PROGRAM)
    return engine


@pytest.fixture
def engine(tmp_path):
    return edit(tiny.patched_copy(tmp_path / "engine"))


def record(engine, *options, command=("program.py",), spec="startup.yaml"):
    return cfac(
        engine,
        "record",
        "--imports",
        spec,
        *options,
        "--settle",
        "1",
        "--",
        sys.executable,
        *command,
    )


def modules(path, component, until):
    data = json.loads(path.read_text())
    (found,) = (i["modules"] for i in data["components"][component] if i["until"] == until)
    return [name.strip() for name in found]


def test_a_start_is_recorded(engine):
    result = record(engine)
    assert result.returncode == 0, result.stderr
    path = engine / "startup.imports.json"
    data = json.loads(path.read_text())
    assert data["engine"] == {"package": "tinyengine", "version": "1.4.0"}
    assert data["runs"] == 1
    assert [i["until"] for i in data["components"]["frontend"]] == [
        "Start", "ConfigReady", "Ready", None,
    ]  # fmt: skip
    assert "tinyengine.frontend" in modules(path, "frontend", "Start")
    assert "plistlib" in modules(path, "core", "Constructed")
    assert "tinyengine.runner" in modules(path, "worker", "Ready")
    late = modules(path, "frontend", None)
    assert late[:2] == ["colorsys", "wave"]
    text = path.read_text()
    for never in (str(engine), str(tiny.ROOT)):
        assert never not in text
    found = {
        name.strip()
        for parts in data["components"].values()
        for i in parts
        for name in i["modules"]
    }
    assert not found & {"__main__", "__mp_main__", "tinyengine._cfac", "os.path", "program"}
    assert not any(name.partition(".")[0] == "cfac" for name in found)
    assert not (engine / "runs").exists()  # a folder of its own


def test_equal_starts_give_equal_bytes(engine):
    assert record(engine).returncode == 0
    path = engine / "startup.imports.json"
    before = path.read_bytes()
    assert record(engine).returncode == 0
    assert path.read_bytes() == before


def test_what_leaves_a_thread_running_is_left_out(engine):
    result = record(engine)
    assert "tinyengine.threads: it starts a thread" in result.stdout
    assert "tinyengine.threads" not in (engine / "startup.imports.json").read_text()


def test_what_cannot_be_imported_by_itself_is_left_out(engine):
    """Here: only for a program that has set something before."""
    part = engine / "tinyengine" / "part.py"
    part.write_text(
        "import sys\n\nif not hasattr(sys, 'engine_is_up'):\n    raise RuntimeError('no')\n"
    )
    worker = engine / "tinyengine" / "worker.py"
    worker.write_text(
        worker.read_text().replace(
            "    import tinyengine.runner",
            "    import sys\n\n    sys.engine_is_up = True\n    import tinyengine.runner",
        )
    )
    result = record(engine)
    assert result.returncode == 0, result.stderr
    assert "tinyengine.part: RuntimeError: no" in result.stdout
    found = modules(engine / "startup.imports.json", "worker", "Ready")
    assert "cmd" in found and not {"tinyengine.part", "tinyengine.runner"} & set(found)


def test_add_keeps_what_both_starts_import(engine):
    assert record(engine).returncode == 0
    path = engine / "startup.imports.json"
    other = engine / "other.py"
    other.write_text(PROGRAM.replace("colorsys", "netrc"))
    result = record(engine, "--add", command=("other.py",))
    assert result.returncode == 0, result.stderr
    assert "2 starts" in result.stdout
    assert json.loads(path.read_text())["runs"] == 2
    found = modules(path, "frontend", None)
    assert "wave" in found and not {"colorsys", "netrc"} & set(found)


def test_add_refuses_another_version(engine):
    assert record(engine).returncode == 0
    path = engine / "startup.imports.json"
    path.write_text(path.read_text().replace('"1.4.0"', '"1.3.0"'))
    before = path.read_text()
    result = record(engine, "--add")
    assert (
        result.returncode == 1
        and "is of tinyengine 1.3.0, and this is tinyengine 1.4.0" in result.stderr
    )
    assert path.read_text() == before


def test_then_is_run_when_all_is_ready(engine):
    there = "import os, sys, time\nwhile not os.path.exists('serving'): time.sleep(0.1)\n"
    (engine / "ask.py").write_text(there)
    result = record(engine, "--then", f"{sys.executable} ask.py", command=("program.py", "--then"))
    assert result.returncode == 0, result.stderr
    result = record(engine, "--then", f"{sys.executable} -c 'raise SystemExit(3)'")
    assert result.returncode == 1 and "exit code 3" in result.stderr


def test_a_run_started_by_other_means(engine, tmp_path):
    runs = tmp_path / "runs"
    result = tiny.run(engine, runs, "--workers", "2", CFAC_RECORD="imports", CFAC_OBSERVE="1")
    assert result.stdout == "serving\n6\n", result.stderr
    (folder,) = tiny.run_folders(runs)
    result = cfac(engine, "record", "--imports", "startup.yaml", "--run", folder)
    assert result.returncode == 0, result.stderr
    assert "plistlib" in modules(engine / "startup.imports.json", "core", "Constructed")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("-c", "pass"), "without a run: is it patched?"),
        (("-c", "raise SystemExit(4)"), "exit code 4"),
        (("-m", "tinyengine.frontend", "--experimental"), "started as stock: the experimental"),
    ],
)
def test_what_is_no_start_is_not_recorded(engine, command, why):
    result = record(engine, command=command)
    assert result.returncode == 1 and why in result.stderr
    assert not (engine / "startup.imports.json").exists()


def test_a_run_that_was_not_recorded_is_refused(engine, tmp_path):
    runs = tmp_path / "runs"
    assert tiny.run(engine, runs, CFAC_OBSERVE="1").returncode == 0
    assert not list(tiny.history(runs).of("imports"))
    (folder,) = tiny.run_folders(runs)
    result = cfac(engine, "record", "--imports", "startup.yaml", "--run", folder)
    assert result.returncode == 1 and "CFAC_RECORD=imports" in result.stderr


def test_the_run_must_have_the_stock_states_of_the_spec(engine, tmp_path):
    text = (engine / "startup.yaml").read_text()
    (engine / "other.yaml").write_text(text.replace("HandleReady", "HandleThere"))
    result = record(engine, spec="other.yaml")
    assert result.returncode == 1 and "whose core has other stock states" in result.stderr


def test_either_a_command_or_a_run(engine):
    result = cfac(engine, "record", "--imports", "startup.yaml")
    assert result.returncode == 2 and "either a COMMAND" in result.stderr


# -- starting with it ------------------------------------------------------------


@pytest.fixture
def recorded(engine, tmp_path):
    """The engine with the fast start, whose early imports are recorded ones."""
    assert record(engine).returncode == 0
    ignore = shutil.ignore_patterns("__pycache__")
    made = edit(Path(shutil.copytree(tiny.SOURCE, tmp_path / "fast", ignore=ignore)))
    (made / "fast.yaml").write_text(RECORDED)
    shutil.copy(engine / "startup.imports.json", made / "fast.imports.json")
    for arguments in (["compile", "fast.yaml"], ["apply", "patches/tiny-fast.patch"]):
        result = cfac(made, *arguments, "--engine", made)
        assert result.returncode == 0, result.stderr
    return made


def test_a_start_imports_early_what_was_recorded(recorded, tmp_path):
    plan = json.loads((recorded / "tinyengine" / "_cfac" / "plan.json").read_text())
    early = plan["transitions"]["core.Prepared"]["imports"]
    assert "plistlib" in early and "tinyengine.runner" in early  # the core's and the workers'
    assert "fast.imports.json" in plan["hashes"]
    script = recorded / "tinyengine" / "worker.py"
    script.write_text(
        script.read_text().replace(
            "    worker = Worker(rank, handle)\n",
            "    import sys\n\n"
            "    print('runner' if 'tinyengine.runner' in sys.modules else 'none', flush=True)\n"
            "    worker = Worker(rank, handle)\n",
        )
    )
    runs = tmp_path / "runs"
    result = tiny.run(recorded, runs)
    assert result.stdout == "runner\nserving\n6\n", result.stderr
    assert list(tiny.history(runs).of("fallback")) == []


def test_a_recorded_module_that_is_gone_is_in_the_trace_only(recorded, tmp_path):
    """Another model may not have it; of a module that the spec names, there is a log line."""
    plan_path = recorded / "tinyengine" / "_cfac" / "plan.json"
    plan = json.loads(plan_path.read_text())
    entry = plan["transitions"]["core.Prepared"]
    entry["imports"] = ["named_and_gone", "recorded_and_gone", *entry["imports"]]
    entry["recorded"] = [1, len(entry["imports"])]
    plan_path.write_text(json.dumps(plan))
    runs = tmp_path / "runs"
    result = tiny.run(recorded, runs)
    assert result.stdout == "serving\n6\n", result.stderr
    assert "named_and_gone was not imported early" in result.stderr
    assert "recorded_and_gone" not in result.stderr
    notes = [event["text"] for event in tiny.history(runs).of("note")]
    assert any("recorded_and_gone was not imported early" in note for note in notes)


# -- what is seen of imports ----------------------------------------------------------


def test_nothing_is_installed_unless_asked(tmp_path):
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "before = list(sys.meta_path)\n"
        "from cfac.runtime.boot import Hooks\n"
        "from cfac.runtime.plan import Plan\n"
        "plan = {'cfac': 1, 'name': 'x', 'params': {}, 'components': {}, 'engine': None}\n"
        "hooks = Hooks(Plan.of(plan))\n"
        "assert hooks.recording is None and sys.meta_path == before\n"
        "assert 'cfac.runtime.recording' not in sys.modules\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CFAC_")}
    for extra in ({}, {"CFAC_RECORD": ""}):
        done = subprocess.run([sys.executable, "-c", code], env=environment | extra, cwd=tiny.ROOT)
        assert done.returncode == 0


def test_imports_go_on_when_the_trace_cannot_be_written(engine, tmp_path):
    """Observation never raises into the engine."""
    runs = tmp_path / "runs"
    process = tiny.start(engine, runs, CFAC_RECORD="imports", CFAC_OBSERVE="1")
    tiny.wait_for_state(runs, "frontend", "Ready")
    (folder,) = tiny.run_folders(runs)
    for file in folder.glob("*.jsonl"):
        file.unlink()
    out, err = process.communicate("1 2 3\n", timeout=tiny.PATIENCE)
    assert (process.returncode, out) == (0, "serving\n6\n"), err
