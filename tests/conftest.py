"""Options shared by all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from summary import Summary

Golden = Callable[[Path, str], None]

# Nothing random decides whether a commit passes: the same examples in every run, in any time.
# ``make soak`` draws others each time, and more (pytest --hypothesis-profile=random).
ANY_MACHINE = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "database": None,
}
settings.register_profile("fixed", derandomize=True, **ANY_MACHINE)
settings.register_profile("random", derandomize=False, print_blob=True, **ANY_MACHINE)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files (tests/cases/**/expected.*) instead of comparing",
    )
    parser.addoption("--summary", type=Path, help="write outcomes and durations to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job, as CI may be, ignores SIGINT, and what tests start would too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--summary"):
        config.pluginmanager.register(Summary(config.getoption("--summary")))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with a golden file, or write the file under --update-golden."""

    def compare(path: Path, actual: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(actual, "utf-8")
        expected = path.read_text("utf-8") if path.exists() else ""
        assert actual == expected, f"{path} differs; if right: pytest --update-golden"

    return compare
