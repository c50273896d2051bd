"""Fixtures shared by the tests of the runtime; whatever a failing test leaves behind ends."""

import subprocess
import sys

import pytest
import tiny

from cfac.runtime.channel import Channel


@pytest.fixture(autouse=True)
def nothing_survives(tmp_path):
    """Kill what this test has started and not ended: it failed, and its processes wait."""
    yield
    tiny.end_started()
    tiny.end_runs(tmp_path)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The folder of this test's runs, for this process too."""
    monkeypatch.setenv("CFAC_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def launched(engine, runs):
    """launched(script, *arguments, **environment) -> a script of the module's ``engine``.

    In a session of its own, killed with its children at the end; with a SIGINT that works, which
    a background job of a shell would not have.
    """
    made = []

    def launch(*words, **extra):
        made.append(
            subprocess.Popen(
                [sys.executable, *words],
                cwd=engine,
                env=tiny.environment(runs, **extra),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return made[-1]

    yield launch
    for process in made:
        tiny.end_session(process)


@pytest.fixture(scope="session")
def faulty(tmp_path_factory):
    """A test build of the C library, which can be told to meet trouble."""
    import checkpoints

    return checkpoints.build_faulty(tmp_path_factory.mktemp("faulty"))


@pytest.fixture
def channel(runs):
    with Channel("process") as made:
        yield made
