"""Fixtures shared by the tests of the runtime; whatever a failing test leaves behind ends."""

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


@pytest.fixture(scope="session")
def faulty(tmp_path_factory):
    """A test build of the C library, which can be told to meet trouble."""
    import checkpoints

    return checkpoints.build_faulty(tmp_path_factory.mktemp("faulty"))


@pytest.fixture
def channel(runs):
    with Channel("process") as made:
        yield made
