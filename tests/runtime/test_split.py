"""Split values: computed at an earlier state, taken where the engine would compute them."""

import pytest
import tiny

SPEC = """
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-split
include: [base.yaml]
components:
  frontend:
    states:
      - Start
      - ConfigEarly: {aux: true, carries: config}
      - ConfigReady: {takes: config}
      - Ready: {after: core.Ready}
bind:
  frontend.Start: {publish: {in: "tinyengine.frontend:Engine.__init__", at: entry}}
  frontend.ConfigEarly:
    publish:
      in: "tinyengine.frontend:Engine.__init__"
      at: entry
      value: create_config(workers, scale, experimental)
  frontend.ConfigReady:
    publish: {in: "tinyengine.frontend:Engine.__init__", at: after, assign: config}
    take: {in: "tinyengine.frontend:Engine.__init__", at: replace_callee, call: create_config}
"""
FAILING = SPEC.replace("create_config(workers,", "create_config(workers // 0,")
#: Says by whom the config is made, each time.
SCRIPT = """
import sys
from tinyengine import frontend
make = frontend.create_config
def seen(*arguments):
    above = sys._getframe(1).f_code.co_name
    print("made by the engine" if above == "__init__" else "made early")
    return make(*arguments)
frontend.create_config = seen
if __name__ == "__main__":
    for scale in (1, 2):
        engine = frontend.Engine(2, scale)
        print(engine.add([1, 2, 3]))
        engine.close()
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return tiny.patched_copy(tmp_path_factory.mktemp("split") / "tree", SPEC)


def histories(runs):
    return [tiny.read_run(folder) for folder in tiny.run_folders(runs)]


def test_what_is_carried_is_not_computed_again(engine, runs):
    """Each of two engines in one process gets its own."""
    result = tiny.run_script(engine, runs, SCRIPT)
    assert result.stdout.splitlines() == ["made early", "6", "made early", "12"], result.stderr
    for history in histories(runs):
        assert tiny.messages(history) == []
        (taken,) = history.of("taken")
        early = history.end("frontend", "ConfigEarly")
        assert early < taken["t"] < history.end("frontend", "ConfigReady")


@pytest.mark.parametrize("extra", [{"CFAC_OBSERVE": "1"}, {"CFAC_DISABLE": "1"}])
def test_as_stock_the_engine_computes_it(engine, runs, extra):
    result = tiny.run_script(engine, runs, SCRIPT, **extra)
    said = ["made by the engine", "6", "made by the engine", "12"]
    assert result.stdout.splitlines() == said, result.stderr
    if "CFAC_OBSERVE" in extra:
        assert all(tiny.messages(history, chain=True) == [] for history in histories(runs))


def test_what_cannot_be_computed_early_is_computed_by_the_engine(tmp_path, runs):
    engine = tiny.patched_copy(tmp_path / "tree", FAILING)
    result = tiny.run_script(engine, runs, SCRIPT)
    assert result.stdout.splitlines()[:2] == ["made by the engine", "6"], result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "carries no config" in line]
    assert "ZeroDivisionError" in line and "the engine computes it later" in line
    assert all(tiny.messages(history) == [] for history in histories(runs))
