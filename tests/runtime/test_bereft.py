"""An engine that has lost a component when it was up, and does not notice."""

import pytest
import tiny

FAST = (tiny.SOURCE / "fast.yaml").read_text().replace("startup.yaml", "base.yaml")
PROGRAM = """
params:
  served: {type: bool, default: false, from: [{program: [served.py]}]}
"""
#: As vLLM's server at its first request to the core: it waits for an answer alone.
SERVED = """
import signal, sys, time
from tinyengine.frontend import Engine

def end(number, frame):
    raise KeyboardInterrupt

if __name__ == "__main__":
    if sys.argv[1] != "unheard":
        signal.signal(signal.SIGTERM, end)
    engine = Engine(1)
    if sys.argv[1] == "close":
        engine.close()
    else:
        engine.pipe.send(None)
    engine.process.join()
    print("alone", flush=True)
    try:
        time.sleep(float(sys.argv[2]))
    except KeyboardInterrupt:
        print("told", flush=True)
        sys.exit(3)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    tree = tiny.patched_copy(tmp_path_factory.mktemp("bereft") / "tree", FAST + PROGRAM)
    for name in ("served.py", "script.py"):
        (tree / name).write_text(SERVED)
    return tree


def test_an_engine_that_waits_for_a_component_that_is_gone_is_asked_to_end(launched, runs):
    process = launched("served.py", "wait", "600")
    out, err = process.communicate(timeout=tiny.PATIENCE)
    assert (process.returncode, out) == (3, "alone\ntold\n"), err
    assert err.count("core has ended, and the engine does not: it gets SIGTERM") == 1
    assert tiny.nothing_left(runs)


@pytest.mark.parametrize(
    ("script", "word", "extra"),
    [
        pytest.param("served.py", "close", {}, id="the-engine-ended-it"),
        pytest.param("served.py", "unheard", {}, id="it-has-no-handler-any-more"),
        pytest.param("script.py", "wait", {}, id="a-script-goes-on-to-other-things"),
        pytest.param("served.py", "wait", {"CFAC_OBSERVE": "1"}, id="observed-only"),
    ],
)
def test_else_it_is_left_alone(launched, runs, script, word, extra):
    process = launched(script, word, "10", **extra)
    out, err = process.communicate(timeout=tiny.PATIENCE)
    assert (process.returncode, out) == (0, "alone\n"), err
    assert "SIGTERM" not in err
    assert tiny.nothing_left(runs)
