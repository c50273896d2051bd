"""Prespawned processes: real interpreters that are there before the engine asks for them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import yaml

SPEC = (tiny.SOURCE / "prespawn.yaml").read_text().replace("startup.yaml", "base.yaml")
PROGRAM = Path(__file__).with_name("stock_or_prespawned.py")


@pytest.fixture(scope="module")
def engine(request, tmp_path_factory):
    return tiny.copy(request, tmp_path_factory.mktemp("prespawn") / "tree", SPEC)


def fallbacks(result_or_text):
    text = getattr(result_or_text, "stderr", result_or_text)
    return [line for line in text.splitlines() if "by the engine itself" in line]


def tree(history):
    """process name -> [(pid, parent's pid)], in the order in which they joined the run."""
    found = {}
    for event in history.of("process"):
        found.setdefault(event["name"], []).append((event["pid"], event["ppid"]))
    return found


# -- as multiprocessing's own ------------------------------------------------------


@pytest.fixture
def toy(tmp_path):
    """A folder with an engine's package in which there is nothing to do."""
    package = tmp_path / "toy"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_cfac.py").touch()
    return tmp_path


def run_program(toy, *arguments, program=PROGRAM, **extra):
    environment = {**os.environ, "PYTHONPATH": f"{tiny.ROOT}:{toy}", "GONE": "1", **extra}
    command = [sys.executable, str(program), *arguments]
    return subprocess.run(
        command, env=environment, cwd=toy, capture_output=True, text=True, input="in",
        timeout=tiny.PATIENCE,
    )  # fmt: skip


def test_a_prespawned_process_is_as_multiprocessings_own(toy):
    stock, prespawned = (run_program(toy, mode) for mode in ("stock", "prespawned"))
    assert stock.returncode == 0, stock.stderr
    assert prespawned.returncode == 0, prespawned.stderr
    expected, found = json.loads(stock.stdout), json.loads(prespawned.stdout)
    for part, values in expected["found"].items():
        assert found["found"][part] == values
    assert prespawned.stderr == stock.stderr
    # Only what stock cannot start either was started by stock.
    assert [line.partition(":")[0] for line in found["fallen back"]] == ["unpicklable"]
    assert expected["fallen back"] == []


ONE = """
import multiprocessing, os, signal, sys, time
from multiprocessing import resource_tracker, spawn
from cfac.runtime import adopt
from cfac.runtime.prespawn import Prespawned, adopting

def work():
    print("worked in", multiprocessing.current_process().name, flush=True)

def fall_back(name, reason, child):
    print("fell back:", reason, flush=True)
    if child is not None:
        child.discard()

def prespawn(package="toy"):
    child = Prespawned("child", package, adopt.Role("no plan", "none", {}))
    return child, adopting({"child": child}, multiprocessing.get_context(METHOD).Process, fall_back)

METHOD = "spawn"
if __name__ == "__main__":
    def case():
"""


def run_case(toy, body, **extra):
    script = toy / "case.py"
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    script.write_text(f"{ONE}{lines}    case()\n")
    return run_program(toy, program=script, **extra)


def test_a_forked_process_is_the_engines_own(toy):
    body = """
global METHOD; METHOD = "fork"
child, process = prespawn()
made = process(target=work, name="child"); made.start(); made.join(); print(made.exitcode)
print(child.interpreter.poll())
"""
    result = run_case(toy, body)
    lines = result.stdout.splitlines()
    assert lines[0] == "fell back: its start method is 'fork', not 'spawn'", result.stderr
    assert lines[1:] == ["worked in child", "0", "-9"]


def test_another_executable_is_the_engines_own(toy):
    """As numactl is put before Python, to bind a child."""
    wrapper = toy / "wrapper"
    wrapper.write_text(f'#!/bin/sh\nexec env WRAPPED=1 "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    body = """
child, process = prespawn()
spawn.set_executable("./wrapper")
made = process(target=os.abort if False else work, name="child"); made.start(); made.join()
"""
    result = run_case(toy, body)
    assert result.stdout == "fell back: it runs './wrapper'\nworked in child\n", result.stderr


def test_a_child_of_another_name_is_the_engines_own(toy):
    body = """
child, process = prespawn()
made = process(target=work, name="other"); made.start(); made.join()
print(child.interpreter.poll())
"""
    result = run_case(toy, body)
    lines = result.stdout.splitlines()
    assert lines == ["fell back: no prespawned child waits for it", "worked in other", "None"]


def test_a_dead_child_says_why(toy):
    (toy / "broken").mkdir()
    (toy / "broken" / "__init__.py").write_text("import nothing_of_this_name\n")
    body = """
child, process = prespawn("broken")
while child.interpreter.poll() is None: time.sleep(0.01)
made = process(target=work, name="child"); made.start(); made.join()
"""
    result = run_case(toy, body)
    line = result.stdout.splitlines()[0]
    assert line.startswith("fell back: the prespawned child ended with exit code 1: Module"), line
    assert "nothing_of_this_name" in line
    assert result.stdout.splitlines()[1:] == ["worked in child"]
    assert result.stderr == ""


def test_a_child_that_dies_in_the_midst_of_it_is_replaced(toy):
    """Not yet a zombie when it is looked at, gone when it is sent its orders."""
    body = """
child, process = prespawn()
child.interpreter.poll = lambda *_: None
os.kill(child.pid, signal.SIGKILL)
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
made = process(target=work, name="child"); made.start(); made.join(); print(made.exitcode)
"""
    result = run_case(toy, body)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("fell back: BrokenPipeError"), result
    assert lines[1:] == ["worked in child", "0"]


def test_start_does_not_wait_for_a_child_that_is_still_busy(toy):
    (toy / "slow").mkdir()
    text = "import time, os\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
    (toy / "slow" / "__init__.py").write_text(text)
    (toy / "slow" / "_cfac.py").touch()
    body = """
child, process = prespawn("slow")
made = process(target=len, args=(b"x" * 8_000_000,), name="child")
made.start()
print("started", made.is_alive(), flush=True)
open("go", "w").close()
made.join(); print(made.exitcode)
"""
    assert run_case(toy, body).stdout == "started True\n0\n"


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)", "sys.exit(0)"])
def test_a_child_that_waits_ends_with_its_parent(toy, end):
    """Busy or waiting, and even while a fork of the parent lives on."""
    (toy / "slow").mkdir()
    (toy / "slow" / "__init__.py").write_text("import time\ntime.sleep(600)\n")
    body = f"""
busy = Prespawned("busy", "slow", adopt.Role("no plan", "none", {{}}))
child, process = prespawn()
pid = os.fork()
if pid == 0:
    os.closerange(1, 3); os.close(resource_tracker.getfd())
    time.sleep(600)
    os._exit(0)
print(child.pid, busy.pid, pid, flush=True)
time.sleep(0.5)
{end}
"""
    result = run_case(toy, body)
    *pids, fork = (int(word) for word in result.stdout.split())
    try:
        assert tiny.wait_until(lambda: all(tiny.gone(pid) for pid in pids)), result.stderr
        assert not tiny.gone(fork)
    finally:
        tiny.kill(fork)


def test_a_child_whose_socket_closes_ends_by_itself(toy):
    body = """
child, process = prespawn()
child._orders.close()
print(child.interpreter.wait(30))
"""
    assert run_case(toy, body).stdout == "0\n"


def test_a_main_module_without_its_guard_fails_as_in_stock(toy):
    text = """
import multiprocessing, sys
mode = sys.argv[-1]
process = multiprocessing.get_context("spawn").Process
if mode == "prespawned":
    from cfac.runtime import adopt
    from cfac.runtime.prespawn import Prespawned, adopting
    child = Prespawned("child", "toy", adopt.Role("no plan", "none", {}))
    process = adopting({"child": child}, process, lambda *why: None)
child = process(target=print, args=("never",), name="child")
child.start()
child.join()
print(child.exitcode)
"""
    (toy / "unguarded.py").write_text(text)
    for mode in ("stock", "prespawned"):
        result = run_program(toy, mode, program=toy / "unguarded.py")
        assert result.stdout == "1\n", result.stderr
        assert "before the\n        current process has finished its bootstrapping" in result.stderr


# -- in an engine ----------------------------------------------------------------


@tiny.both_back_ends
@pytest.mark.parametrize("workers", [1, 3])
def test_a_prespawned_start_conforms_and_answers_as_stock(engine, runs, workers):
    result = tiny.run(engine, runs, "--workers", str(workers))
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    assert len(result.stderr.splitlines()) == tiny.lines(engine), result.stderr
    history = tiny.history(runs)
    assert tiny.messages(history) == []
    assert list(history.of("fallback")) == list(history.of("given_up")) == []
    found = tree(history)
    ((core, root),) = found["TinyCore"]
    assert root == history.info["root"]
    for index in range(workers):
        ((_, parent),) = found[f"TinyWorker-{index}"]
        assert parent == core
    assert tiny.nothing_left(runs)


@tiny.both_back_ends
def test_every_process_is_created_at_once(engine, runs):
    """Core and workers do their independent part while there is no config."""
    delay = "frontend.ConfigReady=600"
    process = tiny.start(engine, runs, "--workers", "2", CFAC_DELAY=delay)
    for component in ("core", "worker[0]", "worker[1]"):
        tiny.wait_for_state(runs, component, "Imported")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=tiny.PATIENCE)
    assert ("frontend", "ConfigReady") not in tiny.history(runs).publishes
    assert "ending" not in err  # children that nobody has asked for end without a word
    assert tiny.nothing_left(runs)


def test_observe_only_starts_everything_as_the_engine_does(engine, runs):
    result = tiny.run(engine, runs, "--workers", "2", CFAC_OBSERVE="1")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    history = tiny.history(runs)
    assert tiny.messages(history, chain=True) == []
    assert history.end("core", "Start") > history.end("frontend", "ConfigReady")


def test_disabled_starts_as_stock(engine, runs):
    result = tiny.run(engine, runs, "--workers", "2", CFAC_DISABLE="1")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n")
    assert not runs.exists()


@tiny.both_back_ends
def test_an_unsupported_configuration_gives_the_children_up(engine, runs):
    """Seen only when the config exists: core and workers end, the engine makes its own."""
    result = tiny.run(engine, runs, "--workers", "2", "--experimental", TINYENGINE_SLOW="0.5")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    assert len([line for line in result.stderr.splitlines() if "as stock" in line]) == 1
    assert len(result.stderr.splitlines()) == 1 + tiny.lines(engine), result.stderr
    assert tiny.nothing_left(runs)


#: The config is made once the children have done their part, however long they take;
#: VICTIM is killed before that.
ENGINE = """
import json, os, sys, time
from pathlib import Path
from types import SimpleNamespace
from tinyengine import frontend

def imported():
    folder = os.environ["CFAC_RUN"].split(":", 2)[2]
    found = {}
    for file in Path(folder).glob("*.jsonl"):
        for line in file.read_text().split("\\n")[:-1]:
            event = json.loads(line)
            if event["e"] == "publish" and event["s"] == "Imported":
                found[event["c"], event["i"]] = file.stem
    return found

def state(pid):
    return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]

def hold(_):
    while len(found := imported()) < EARLY:
        time.sleep(0.01)
    if VICTIM:
        pid = found[VICTIM]
        os.kill(int(pid), 9)
        while state(pid) != "Z":
            time.sleep(0.01)

if __name__ == "__main__":
    sys.argv += ARGV
    frontend.time = SimpleNamespace(sleep=hold)
    for workers in WORKERS:
        engine = frontend.Engine(workers)
        print(engine.add([1, 2, 3]), flush=True)
        engine.close()
        print(engine.process.exitcode, engine.process.name, engine.process.daemon, flush=True)
"""
ANSWER = "6\n0 TinyCore False\n"


def run_engine(engine, runs, argv, workers, early, victim=None):
    """Start an engine for each of ``workers``; ``early`` children are there before its config."""
    values = f"ARGV, WORKERS, EARLY, VICTIM = {argv!r}, {workers!r}, {early!r}, {victim!r}\n"
    return tiny.run_script(engine, runs, values + ENGINE)


def test_more_workers_than_guessed_are_the_engines_own(engine, runs):
    """The command line says nothing, so one worker is there; the config has three."""
    result = run_engine(engine, runs, [], [3], early=2)
    assert result.stdout == ANSWER, result.stderr
    reason = "is started by the engine itself: no prespawned child waits for it"
    assert [line.removeprefix("cfac: ") for line in fallbacks(result)] == [
        f"worker (TinyWorker-{index}) {reason}" for index in (1, 2)
    ]
    history = tiny.history(runs)
    assert tiny.messages(history) == []
    assert [event["c"] for event in history.of("fallback")] == ["worker", "worker"]


def test_fewer_workers_than_guessed_leave_nothing_behind(engine, runs):
    result = run_engine(engine, runs, ["--workers", "4"], [1], early=5)
    assert result.stdout == ANSWER, result.stderr
    assert fallbacks(result) == []
    history = tiny.history(runs)
    assert tiny.messages(history) == []
    assert [event["c"] for event in history.of("given_up")] == ["worker"] * 3
    assert tiny.nothing_left(runs)


def test_two_engines_in_one_process(engine, runs):
    result = run_engine(engine, runs, [], [1, 1], early=2)
    assert result.stdout == ANSWER * 2, result.stderr
    assert fallbacks(result) == []
    folders = tiny.run_folders(runs)
    assert len(folders) == 2
    assert [tiny.messages(tiny.read_run(folder)) for folder in folders] == [[], []]
    assert tiny.nothing_left(runs)


@tiny.both_back_ends
def test_an_engine_that_forks_gets_its_own_processes(engine, runs):
    result = tiny.run(engine, runs, "--workers", "2", TINYENGINE_START_METHOD="fork")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    assert len(fallbacks(result)) == 3, result.stderr
    assert all("its start method is 'fork', not 'spawn'" in line for line in fallbacks(result))
    assert tiny.messages(tiny.history(runs)) == []
    assert tiny.nothing_left(runs)


VICTIMS = [(("core", None), "core"), (("worker", 1), "worker (TinyWorker-1)")]


@pytest.mark.parametrize(("victim", "who"), VICTIMS, ids=["core", "worker"])
def test_a_child_that_died_before_it_was_adopted_is_replaced(engine, runs, victim, who):
    result = run_engine(engine, runs, ["--workers", "2"], [2], early=3, victim=victim)
    assert result.stdout == ANSWER, result.stderr
    (line,) = fallbacks(result)
    reason = "is started by the engine itself: the prespawned child ended with exit code -9"
    assert line == f"cfac: {who} {reason}"
    assert "failed" not in result.stderr
    assert tiny.messages(tiny.history(runs)) == []
    assert tiny.nothing_left(runs)


def test_workers_are_prespawned_by_a_core_that_was_not(tmp_path, runs):
    """By its first state, in the midst of its own spawn: multiprocessing would refuse that."""
    text = yaml.safe_load(SPEC)
    del text["components"]["core"]
    tree_of = tiny.patched_copy(tmp_path / "tree", yaml.safe_dump(text))
    result = tiny.run(tree_of, runs, "--workers", "2")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    assert fallbacks(result) == []
    history = tiny.history(runs)
    assert tiny.messages(history) == []
    started = {e["name"]: e["started"] for e in history.of("process")}
    for index in range(2):  # their processes, that is: they may get no CPU for a while
        assert started[f"TinyWorker-{index}"] < history.end("core", "Constructed")


def test_prespawned_at_a_later_state(tmp_path, runs):
    text = SPEC.replace("strategy: prespawn", "strategy: {prespawn: core.Imported}")
    text = text.replace("{prespawn: core.Imported}", "prespawn", 1)
    tree_of = tiny.patched_copy(tmp_path / "tree", text)
    for number, extra in enumerate(({}, {"TINYENGINE_START_METHOD": "fork"})):
        folder = tmp_path / f"runs-{number}"
        result = tiny.run(tree_of, folder, "--workers", "2", **extra)
        assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
        history = tiny.history(folder)
        assert tiny.messages(history) == []
        if not extra:
            assert fallbacks(result) == []
            first = history.end("core", "Imported")
            assert all(history.end(f"worker[{i}]", "Start") > first for i in range(2))


# -- every early moment -----------------------------------------------------------

#: where the start is held up, and the state that tells that it is about to be there
MOMENTS = [
    ("frontend.Start=600:after", ("frontend", "Start")),
    ("frontend.ConfigReady=600", ("frontend", "Start")),
    ("frontend.ConfigReady=600", ("worker[1]", "Imported")),
    ("core.Start=600", ("frontend", "Start")),
    ("core.Imported=600", ("core", "Start")),
    ("core.Imported=600,frontend.ConfigReady=600", ("core", "Start")),
    ("worker[0].Start=600", ("core", "Start")),
    ("worker[0].Imported=600:after", ("worker[0]", "Imported")),
    ("core.Constructed=600", ("core", "Imported")),
    ("worker[1].Constructed=600", ("worker[1]", "Imported")),
]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(("delay", "state"), MOMENTS)
def test_a_signal_at_any_early_moment_leaves_nothing(engine, runs, number, delay, state):
    """SIGINT goes to all of the foreground group, as from a terminal."""
    group = number == signal.SIGINT
    process = tiny.start(engine, runs, "--workers", "2", group=group, CFAC_DELAY=delay)
    tiny.wait_for_state(runs, *state)
    (os.killpg if group else os.kill)(process.pid, number)
    process.wait(tiny.PATIENCE)
    assert tiny.nothing_left(runs)
    process.communicate(timeout=tiny.PATIENCE)


def test_an_early_interrupt_of_all_processes_is_quiet_and_leaves_nothing(engine, runs):
    """Ctrl-C in a terminal: every process of the foreground group gets it."""
    delay = "frontend.ConfigReady=600"
    process = tiny.start(engine, runs, "--workers", "2", group=True, CFAC_DELAY=delay)
    for component in ("core", "worker[0]", "worker[1]"):
        tiny.wait_for_state(runs, component, "Imported")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=tiny.PATIENCE)
    assert tiny.nothing_left(runs)
    assert err.count("KeyboardInterrupt\n") == 1, err  # the frontend's own


STATES = [("core", "Constructed"), ("worker[1]", "Constructed"), ("worker[0]", "Ready")]


@pytest.mark.parametrize(("component", "state"), STATES, ids=lambda value: value)
def test_an_adopted_process_that_is_killed_ends_the_run(engine, runs, component, state):
    tiny.kill_at(engine, runs, component, state)
