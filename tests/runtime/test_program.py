"""The parameter source 'program': how a process was started, told by the process itself."""

import os
import subprocess
import sys

import pytest
import tiny

from cfac.compiler import api
from cfac.runtime.plan import Plan
from cfac.runtime.verify import verify

SPEC = """
apiVersion: cfac/v1
kind: StartupGraph
name: program
params:
  serve: {type: bool, default: false, from: [{program: [eng, serve]}, {program: [eng-serve]}]}
components:
  core: {states: [Start, Ready], when: {param: serve, is: true}}
"""
MAIN = """#!{python}
import json, multiprocessing, sys
from cfac.runtime.plan import Plan

def tell(who, queue):
    plan = Plan.read({plan!r})
    queue.put((who, plan.params["serve"], plan.present("core"), sys.argv[1:]))

if __name__ == "__main__":
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=tell, args=(method, queue))
        child.start()
        print(json.dumps(queue.get(timeout=300)))
        child.join()
        tell("self", queue)
    print(json.dumps(queue.get(timeout=300)))
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spec")
    (folder / "spec.yaml").write_text(SPEC)
    spec, diagnostics = api.load(folder / "spec.yaml")
    assert spec is not None and not diagnostics.errors
    return api.compile_plan(spec)


def start(plan, folder, name, *arguments, launcher=()):
    """Whether each process is the program: itself, a spawned and a forked child."""
    import json

    (folder / "plan.json").write_text(json.dumps(plan))
    program = folder / name
    program.write_text(MAIN.format(python=sys.executable, plan=str(folder / "plan.json")))
    program.chmod(0o755)
    done = subprocess.run(
        [*launcher, str(program), *arguments],
        env=tiny.environment(folder / "runs"),
        capture_output=True,
        text=True,
        timeout=tiny.PATIENCE,
        check=True,
    )
    answers = {}
    for who, value, present, argv in map(json.loads, done.stdout.splitlines()):
        assert argv == list(arguments)  # spawn copies it
        assert present is value
        answers[who] = value
    return answers


@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("eng", ["serve", "--x"], True),
        ("eng", ["serve"], True),
        ("eng-serve", [], True),
        ("eng", ["bench", "serve"], False),
        ("eng", [], False),
        ("engine", ["serve"], False),
    ],
)
def test_started_as(plan, tmp_path, name, arguments, value):
    found = start(plan, tmp_path, name, *arguments)
    assert found == {"self": value, "fork": value, "spawn": False}


def test_started_by_way_of_python(plan, tmp_path):
    found = start(plan, tmp_path, "eng", "serve", launcher=[sys.executable, "-X", "utf8"])
    assert found == {"self": True, "fork": True, "spawn": False}


def test_arguments_that_only_look_like_it(plan, monkeypatch):
    monkeypatch.setattr(sys, "argv", [os.path.join("bin", "eng"), "serve"])
    assert not Plan.of(plan).params["serve"]
    monkeypatch.setattr(sys, "orig_argv", ["python", os.path.join("bin", "eng"), "serve"])
    assert Plan.of(plan).params["serve"]


ENGINE = """
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-program
include: [base.yaml]
engine:
  unsupported:
    - {when: {param: script, is: false}, reason: not started as the script}
params:
  script: {type: bool, default: false, from: [{program: [tiny, go]}]}
"""


def test_an_engine_that_is_not_started_so_is_as_stock(tmp_path):
    engine = tiny.patched_copy(tmp_path / "tree", ENGINE)
    script = tmp_path / "tiny"
    script.write_text(
        "import sys\n"
        "if __name__ == '__main__':\n"
        "    from tinyengine.frontend import Engine\n"
        "    engine = Engine(2)\n"
        "    print(engine.add([1, 2]))\n"
        "    engine.close()\n"
    )
    for word in ("go", "stay"):
        done = subprocess.run(
            [sys.executable, str(script), word],
            cwd=engine,
            env=tiny.environment(tmp_path / word, PYTHONPATH=f"{tiny.ROOT}:{engine}"),
            capture_output=True,
            text=True,
            timeout=tiny.PATIENCE,
            check=True,
        )
        assert done.stdout == "3\n"
        assert ("as stock: not started as the script" in done.stderr) is (word == "stay")
    history = tiny.history(tmp_path / "go")
    assert history.plan.params["script"] is True  # not what it is for this process
    assert verify(history) == []
