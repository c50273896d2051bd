"""Fork edges on the tiny engine: as stock in everything but the time it takes."""

import os
import signal
from pathlib import Path

import pytest
import tiny

FAST = (tiny.SOURCE / "fast.yaml").read_text().replace("startup.yaml", "base.yaml")


@pytest.fixture(scope="module")
def engine(request, tmp_path_factory):
    return tiny.copy(request, tmp_path_factory.mktemp("fast") / "tree", FAST)


def parents(history):
    """process name -> (pid, parent's pid) as the processes themselves saw it."""
    return {e["name"]: (e["pid"], e["ppid"]) for e in history.of("process")}


@tiny.both_back_ends
@pytest.mark.parametrize("workers", [1, 3])
def test_a_forked_start_conforms_and_answers_as_stock(engine, runs, workers):
    result = tiny.run(engine, runs, "--workers", str(workers))
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    assert len(result.stderr.splitlines()) == tiny.lines(engine), result.stderr
    history = tiny.history(runs)
    assert tiny.messages(history) == []
    assert list(history.of("fallback")) == []
    tree = parents(history)
    core = tree["TinyCore"]
    assert core[1] == history.info["root"]
    assert all(tree[f"TinyWorker-{i}"][1] == core[0] for i in range(workers))
    assert tiny.nothing_left(runs)


@tiny.both_back_ends
def test_the_core_is_forked_before_there_is_a_config(engine, runs):
    result = tiny.run(engine, runs, TINYENGINE_SLOW="0.3")
    assert result.returncode == 0, result.stderr
    history = tiny.history(runs)
    started = {e["name"]: e["started"] for e in history.of("process")}
    assert started["TinyCore"] < history.end("frontend", "ConfigReady")


@tiny.both_back_ends
def test_observe_only_starts_everything_as_the_engine_does(engine, runs):
    result = tiny.run(engine, runs, "--workers", "2", CFAC_OBSERVE="1")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    history = tiny.history(runs)
    assert tiny.messages(history, chain=True) == []
    assert history.end("core", "Start") > history.end("frontend", "ConfigReady")


@tiny.both_back_ends
def test_disabled_starts_as_stock(engine, runs):
    result = tiny.run(engine, runs, "--workers", "2", CFAC_DISABLE="1")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n")
    assert not runs.exists()


@tiny.both_back_ends
def test_an_unsupported_configuration_gives_the_child_up(engine, runs):
    """Seen only when the config exists: the child forked before it ends, the engine goes on."""
    result = tiny.run(engine, runs, "--workers", "2", "--experimental")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    assert len([line for line in result.stderr.splitlines() if "as stock" in line]) == 1
    assert tiny.nothing_left(runs)


THREAD = (
    "import threading, time\n"
    "from tinyengine.frontend import Engine\n"
    "if __name__ == '__main__':\n"
    "    threading.Thread(target=time.sleep, args=(600,), name='warm-up', daemon=True).start()\n"
    "    engine = Engine(2)\n"
    "    print(engine.add([1, 2, 3]))\n"
    "    engine.close()\n"
)


def test_a_thread_at_the_fork_point_falls_back_with_one_line(engine, runs):
    result = tiny.run_script(engine, runs, THREAD)
    assert result.stdout == "6\n", result.stderr
    lines = [line for line in result.stderr.splitlines() if "by the engine itself" in line]
    assert len(lines) == 1, result.stderr
    assert "core is started by the engine itself: 1 other Python thread(s)" in lines[0]
    assert "warm-up" in lines[0]
    history = tiny.history(runs)
    assert tiny.messages(history) == []
    assert [event["c"] for event in history.of("fallback")] == ["core"]


def test_a_child_that_died_before_it_was_adopted_is_replaced(engine, runs):
    process = tiny.start(engine, runs, "--workers", "2", TINYENGINE_SLOW="4")
    tiny.kill(tiny.wait_for_state(runs, "core", "Prepared"))
    out, err = process.communicate("1 2 3\n", timeout=tiny.PATIENCE)
    assert (process.returncode, out) == (0, "serving\n6\n"), err
    assert "core is started by the engine itself: ChildProcessError" in err
    assert "failed" not in err
    assert tiny.messages(tiny.history(runs)) == []
    assert tiny.nothing_left(runs)


def test_the_parents_environment_and_folder_travel(engine, runs):
    text = (
        "import os\n"
        "from tinyengine import frontend\n"
        "make = frontend.create_config\n"
        "def changed(*arguments):\n"
        "    config = make(*arguments)\n"
        "    os.environ['CHANGED'] = 'yes'; os.environ.pop('GONE', None); os.chdir('/')\n"
        "    return config\n"
        "frontend.create_config = changed\n"
        "if __name__ == '__main__':\n"
        "    engine = frontend.Engine(1)\n"
        "    pid = engine.process.pid\n"
        "    print(os.readlink(f'/proc/{pid}/cwd'), engine.add([4]))\n"
        "    engine.close()\n"
        "    print(engine.process.exitcode, engine.process.name, engine.process.daemon)\n"
    )
    result = tiny.run_script(engine, runs, text, GONE="1")
    assert result.stdout.splitlines() == ["/ 4", "0 TinyCore False"], result.stderr


INHERITING = """
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-inheriting
include: [fast-base.yaml]
components:
  core:
    process: {aliases: {core.Constructed: frontend.CommonImported}}
    states:
      - Start
      - Prepared
      - Constructed: {after: []}
      - HandleReady: {after: frontend.ConfigReady}
      - Ready
  worker:
    process: {aliases: {worker.Constructed: core.HandleReady}}
bind:
  core.Constructed: {begin: []}
  core.HandleReady: {begin: {in: "tinyengine.core:core_main", at: entry}}
"""


@pytest.fixture(scope="module")
def inheriting(tmp_path_factory):
    def prepare(target):
        (target / "fast-base.yaml").write_text(FAST)

    return tiny.patched_copy(tmp_path_factory.mktemp("inherit") / "tree", INHERITING, prepare)


def test_a_forked_child_has_its_parents_states_by_birth(inheriting, runs):
    result = tiny.run(inheriting, runs, "--workers", "2")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    history = tiny.history(runs)
    assert tiny.messages(history) == []
    assert history.end("core", "Constructed") < history.end("frontend", "ConfigReady")
    for who in ("core", "worker[0]", "worker[1]"):  # once, though the engine gets there later
        assert len(history.publishes[who, "Constructed"]) == 1
    born = {e["pid"]: e["name"] for e in history.of("process")}
    said = {born[e["pid"]] for e in history.of("publish") if e["s"] == "Constructed"}
    assert said == {"TinyCore", "TinyWorker-0", "TinyWorker-1"}


@pytest.mark.parametrize("extra", [{}, {"CFAC_OBSERVE": "1"}], ids=["thread", "observed"])
def test_what_is_not_forked_inherits_nothing(inheriting, runs, extra):
    result = tiny.run_script(inheriting, runs, THREAD, **extra)
    assert result.stdout == "6\n", result.stderr
    history = tiny.history(runs)
    assert tiny.messages(history) == []
    assert history.end("core", "Constructed") > history.end("frontend", "ConfigReady")


STATES = [("frontend", "CommonImported"), ("core", "Constructed"), ("worker[1]", "Constructed")]


@pytest.mark.parametrize(("component", "state"), STATES, ids=lambda value: value)
def test_a_killed_process_ends_the_run_as_without_forks(engine, runs, component, state):
    tiny.kill_at(engine, runs, component, state)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("state", ["CommonImported", "ConfigReady"])
def test_an_early_signal_leaves_nothing(engine, runs, number, state):
    process = tiny.start(engine, runs, CFAC_DELAY=f"frontend.{state}=600:after")
    tiny.wait_for_state(runs, "frontend", state)
    process.send_signal(number)
    process.wait(tiny.PATIENCE)
    assert tiny.nothing_left(runs)
    process.communicate(timeout=tiny.PATIENCE)


def test_the_toy_engine_itself_is_untouched():
    text = "".join(path.read_text() for path in Path(tiny.SOURCE).rglob("*.py"))
    assert "_cfac" not in text
    assert os.path.isdir(tiny.SOURCE / "tinyengine")
