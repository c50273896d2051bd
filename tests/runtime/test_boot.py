"""A patched engine and its run, on the tiny engine: observation, fall-backs, faults."""

import os
import random
import signal
import time

import pytest
import tiny

from cfac.runtime.verify import verify


@pytest.fixture(scope="module")
def engine(request, tmp_path_factory):
    return tiny.copy(request, tmp_path_factory.mktemp("engine") / "tree")


def messages(findings):
    return [f"{finding.kind}: {finding.message}" for finding in findings]


@tiny.both_back_ends
@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_conforms_to_spec_and_chain(engine, runs, method, workers):
    result = tiny.run(engine, runs, "--workers", str(workers), TINYENGINE_START_METHOD=method)
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    history = tiny.history(runs)
    assert history.plan.params["workers"] == workers
    assert messages(verify(history, chain=True)) == []
    assert len(history.publishes) == 3 + 4 + 3 * workers
    assert tiny.nothing_left(runs)


@tiny.both_back_ends
def test_the_engine_prints_what_it_would_print_without_cfac(engine, runs):
    stock = tiny.run(tiny.SOURCE, runs, "--workers", "2")
    patched = tiny.run(engine, runs, "--workers", "2")
    assert (patched.returncode, patched.stdout) == (stock.returncode, stock.stdout)
    lines = [line for line in patched.stderr.splitlines() if "cfac" in line]
    assert len(lines) == tiny.lines(engine), patched.stderr
    assert "run " in lines[-1]


@tiny.both_back_ends
def test_disabled_starts_as_stock_with_one_line_or_without_the_hook(engine, runs):
    result = tiny.run(engine, runs, "--workers", "2", CFAC_DISABLE="1")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n")
    assert result.stderr.count("CFAC_DISABLE") == len(result.stderr.splitlines())
    assert len(result.stderr.splitlines()) == (1 if tiny.lines(engine) == 1 else 0)
    assert not runs.exists()


def test_without_cfac_installed_it_starts_as_stock_with_one_line(engine, runs):
    result = tiny.run(engine, runs, "--workers", "2", installed=False)
    assert (result.returncode, result.stdout) == (0, "serving\n6\n")
    assert result.stderr.count("cannot be imported") == 1
    assert not runs.exists()


@tiny.both_back_ends
def test_an_unsupported_configuration_starts_as_stock_with_one_line(engine, runs):
    result = tiny.run(engine, runs, "--workers", "2", "--experimental")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n")
    lines = [line for line in result.stderr.splitlines() if "as stock" in line]
    assert len(lines) == 1, result.stderr
    assert "the experimental mode is not described" in lines[0]
    assert tiny.nothing_left(runs)


def test_a_runs_folder_that_cannot_be_written_only_costs_the_observation(engine, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = tiny.run(engine, blocked, "--workers", "2")
    assert (result.returncode, result.stdout) == (0, "serving\n6\n")
    assert len([line for line in result.stderr.splitlines() if "not observed" in line]) == 1


@tiny.both_back_ends
def test_two_engines_in_one_process_are_two_runs(engine, runs):
    code = (
        "from tinyengine.frontend import Engine\n"
        "if __name__ == '__main__':\n"
        "    first, second = Engine(1), Engine(2)\n"
        "    print(first.add([1, 2]), second.add([3, 4]))\n"
        "    first.close(); second.close()\n"
    )
    result = tiny.run_script(engine, runs, code)
    assert result.stdout == "3 7\n", result.stderr
    folders = tiny.run_folders(runs)
    assert len(folders) == 2
    for folder, workers in zip(folders, (1, 2), strict=True):
        history = tiny.read_run(folder)
        assert history.plan.params["workers"] == workers
        assert messages(verify(history, chain=True)) == []
    assert tiny.nothing_left(runs)


def test_an_engine_started_by_an_observed_engines_process_is_a_run_of_its_own(engine, runs):
    """CFAC_RUN is inherited by any child, also by one that starts another engine."""
    code = (
        "import subprocess, sys\n"
        "from tinyengine.frontend import Engine\n"
        "if __name__ == '__main__':\n"
        "    outer = Engine(1)\n"
        "    inner = subprocess.run([sys.executable, '-m', 'tinyengine.frontend'],\n"
        "                           input='5 6\\n', text=True, capture_output=True)\n"
        "    print(inner.stdout.split()[-1], outer.add([1, 2]))\n"
        "    outer.close()\n"
    )
    result = tiny.run_script(engine, runs, code)
    assert result.stdout == "11 3\n", result.stderr
    assert [messages(verify(tiny.read_run(f))) for f in tiny.run_folders(runs)] == [[], []]


STATES = [
    ("frontend", "Start"),  # the owner has hardly begun
    ("frontend", "ConfigReady"),
    ("core", "Start"),
    ("core", "Constructed"),
    ("core", "HandleReady"),
    ("worker[0]", "Start"),
    ("worker[1]", "Constructed"),
    ("worker[0]", "Ready"),
]


@pytest.mark.parametrize(("component", "state"), STATES, ids=lambda value: value)
def test_a_process_killed_at_a_state_ends_the_run_naming_it(engine, runs, component, state):
    err = tiny.kill_at(engine, runs, component, state)
    assert f"in state {state}" in err
    assert "SIGKILL" in err


@pytest.mark.parametrize("component", ["frontend", "core", "worker[1]"])
def test_a_process_killed_when_ready_and_idle_leaves_nothing(engine, runs, component):
    process = tiny.start(engine, runs, "--workers", "2")
    assert process.stdout.readline() == "serving\n"
    victim = tiny.wait_for_state(runs, component, "Ready")
    tiny.kill(victim)
    assert tiny.wait_until(lambda: tiny.gone(victim))
    if component != "frontend":
        process.stdin.close()  # the toy frontend only notices when it is used
    assert tiny.nothing_left(runs)
    process.wait(tiny.PATIENCE)
    err = process.stderr.read()
    assert f"component {component} failed" in err
    assert "in state Ready" in err


def test_the_owners_death_is_silent_and_the_engine_lives(engine, runs):
    process = tiny.start(engine, runs, "--workers", "2", CFAC_DELAY="core.Constructed=4")
    tiny.wait_for_state(runs, "core", "Start")
    tiny.kill(tiny.owner_of(runs))
    out, err = process.communicate("1 2 3\n", timeout=tiny.PATIENCE)
    assert (process.returncode, out) == (0, "serving\n6\n"), err
    assert "nothing is observed from here on" in err
    assert "Traceback" not in err


def test_a_normal_stop_leaves_no_message_and_nothing_behind(engine, runs):
    result = tiny.run(engine, runs, "--workers", "2")
    assert "failed" not in result.stderr
    assert tiny.nothing_left(runs)
    assert list(tiny.history(runs).of("failed")) == []


def test_interrupt_while_starting_leaves_nothing(engine, runs):
    process = tiny.start(engine, runs, "--workers", "2", CFAC_DELAY="core.HandleReady=600")
    tiny.wait_for_state(runs, "core", "Constructed")
    process.send_signal(signal.SIGTERM)
    assert tiny.nothing_left(runs)
    process.communicate(timeout=tiny.PATIENCE)


ENFORCED = """
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-enforced
include: [base.yaml]
components:
  worker:
    states:
      - Start
      - Constructed: {after: {state: "worker[i-1].Constructed", schedule: true}}
      - Ready
bind:
  worker.Constructed:
    wait: {in: "tinyengine.worker:worker_main", at: entry}
"""


@pytest.fixture(scope="module")
def enforced(tmp_path_factory):
    return tiny.patched_copy(tmp_path_factory.mktemp("enforced") / "tree", ENFORCED)


def test_an_enforced_order_holds_under_delay(enforced, runs):
    delay = "worker[0].Constructed=0.5"
    result = tiny.run(enforced, runs, "--workers", "3", CFAC_DELAY=delay)
    assert result.returncode == 0, result.stderr
    history = tiny.history(runs)
    assert messages(verify(history)) == []
    ends = [history.end(f"worker[{i}]", "Constructed") for i in range(3)]
    assert ends == sorted(ends)


def test_a_deleted_wait_is_caught_and_its_dependency_named(enforced, runs, tmp_path):
    import shutil

    broken = shutil.copytree(enforced, tmp_path / "broken")
    source = broken / "tinyengine" / "worker.py"
    lines = source.read_text().splitlines(keepends=True)
    kept = [line for line in lines if "cfac:worker.Constructed:wait" not in line]
    assert len(kept) == len(lines) - 1
    source.write_text("".join(kept))
    delay = "worker[0].Constructed=3"
    result = tiny.run(broken, runs, "--workers", "2", CFAC_DELAY=delay)
    assert result.returncode == 0, result.stderr
    found = messages(verify(tiny.history(runs)))
    assert len(found) == 1, found
    assert found[0].startswith(
        "dependency: worker[1].Constructed after worker[0].Constructed: it began"
    )


def test_observe_only_does_not_enforce(enforced, runs):
    delay = "worker[0].Constructed=3"
    result = tiny.run(enforced, runs, "--workers", "2", CFAC_DELAY=delay, CFAC_OBSERVE="1")
    assert result.returncode == 0, result.stderr
    history = tiny.history(runs)
    assert history.end("worker[1]", "Constructed") < history.end("worker[0]", "Constructed")


def test_enforced_waits_raise_when_the_owner_dies(enforced, runs):
    delay = "worker[0].Constructed=600"
    process = tiny.start(enforced, runs, "--workers", "2", CFAC_DELAY=delay)
    tiny.wait_for_state(runs, "worker[1]", "Start")
    time.sleep(0.3)
    tiny.kill(tiny.owner_of(runs))
    _, err = process.communicate(timeout=tiny.PATIENCE)
    assert process.returncode != 0
    assert "OwnerLost" in err
    assert tiny.nothing_left(runs)


DEADLOCK = """
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-deadlock
include: [base.yaml]
chain: []
components:
  frontend:
    states: [Start, ConfigReady, {Ready: {after: []}}]
  core:
    states: [Start, Constructed, {HandleReady: {after: frontend.Ready}}, Ready]
bind:
  core.HandleReady:
    wait: {in: "tinyengine.core:Core.__init__", at: entry}
"""


def test_a_deadlock_is_reported_and_ends_cleanly(tmp_path, runs):
    engine = tiny.patched_copy(tmp_path / "tree", DEADLOCK)
    result = tiny.run(engine, runs, CFAC_STALL="0.5", CFAC_WAIT_TIMEOUT="2")
    assert result.returncode != 0
    assert "core.HandleReady waits for frontend.Ready: frontend is in ConfigReady" in result.stderr
    assert "WaitTimeout" in result.stderr
    assert tiny.nothing_left(runs)


def test_random_delays_never_break_the_order(engine, runs, tmp_path):
    """Many starts with random delays at every state; the seed is fixed."""
    rng = random.Random(42)
    states = [
        *("frontend.ConfigReady", "frontend.Ready", "core.Constructed", "core.HandleReady"),
        *("core.Ready", "worker[0].Constructed", "worker[0].Ready", "worker[1].Ready"),
    ]
    for round_number in range(8):
        delays = ",".join(f"{state}={rng.random() * 0.1:.3f}" for state in states)
        folder = tmp_path / f"round-{round_number}"
        result = tiny.run(
            engine, folder, "--workers", "2", CFAC_DELAY=delays, TINYENGINE_SLOW="0.01"
        )
        assert result.returncode == 0, result.stderr
        assert messages(verify(tiny.history(folder), chain=True)) == []


def test_the_run_is_for_its_user_only(engine, runs):
    process = tiny.start(engine, runs, CFAC_DELAY="core.Ready=4")
    tiny.wait_for_state(runs, "core", "HandleReady")
    (folder,) = tiny.run_folders(runs)
    assert os.stat(folder).st_mode & 0o077 == 0
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in folder.glob("*.jsonl"))
    token = os.readlink(f"/proc/{tiny.owner_of(runs)}/exe")  # reachable, so this is our owner
    assert token
    with open(f"/proc/{tiny.owner_of(runs)}/cmdline", "rb") as file:
        words = file.read().decode().split("\0")
    assert not [word for word in words if len(word) == 32 and word.isalnum()], "a token in argv"
    process.communicate("1\n", timeout=tiny.PATIENCE)
