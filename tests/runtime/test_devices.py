"""Devices: opened by the process that uses them, never by one that forks later.

There is no GPU here.  What needs one runs with doubles, as the tests' names say: of torch
(a module in its place that notes what is opened), and of the CUDA driver (a library of its
name).
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import tiny

TORCH = '''"""A double of torch: it notes which devices a process opens."""
import os, types
version = types.SimpleNamespace(cuda=os.environ.get("DOUBLE_BUILT", "13.0"), hip=None, xpu=None)
_opened = []
def _set_device(index):
    _opened.append(index)
def _synchronize(index):
    with open(os.environ["DOUBLE_LOG"], "a") as file:
        import multiprocessing
        file.write(f"{multiprocessing.current_process().name} cuda:{index}\\n")
cuda = types.SimpleNamespace(
    device_count=lambda: int(os.environ.get("DOUBLE_COUNT", "8")),
    set_device=_set_device,
    synchronize=_synchronize,
    is_initialized=lambda: bool(_opened),
)
'''
#: As the engine knows it: an attribute of one of its modules.
PLATFORM = "import os\nclass current:\n    kind = os.environ.get('DOUBLE_KIND', 'cuda')\n"
PRESPAWN = (
    (tiny.SOURCE / "prespawn.yaml")
    .read_text()
    .replace("startup.yaml", "base.yaml")
    .replace(
        "import: [tinyengine.worker, decimal]}}",
        "import: [tinyengine.worker]}}\n"
        "      - DeviceOpened:\n"
        "          aux: true\n"
        "          does:\n"
        "            device:\n"
        "              kind: tinyengine.platform:current.kind\n"
        "              when: {param: workers, above: 1}",
    )
)
FAST = (tiny.SOURCE / "fast.yaml").read_text().replace("startup.yaml", "base.yaml")


def doubles(target: Path) -> None:
    (target / "torch.py").write_text(TORCH)
    (target / "tinyengine" / "platform.py").write_text(PLATFORM)


@pytest.fixture(scope="module")
def prespawning(tmp_path_factory):
    return tiny.patched_copy(tmp_path_factory.mktemp("devices") / "tree", PRESPAWN, doubles)


@pytest.fixture(scope="module")
def forking(tmp_path_factory):
    return tiny.patched_copy(tmp_path_factory.mktemp("forking") / "tree", FAST, doubles)


def opened(runs):
    log = runs.parent / "opened"
    return sorted(log.read_text().splitlines()) if log.exists() else []


def run(engine, runs, *arguments, **extra):
    result = tiny.run(engine, runs, *arguments, DOUBLE_LOG=str(runs.parent / "opened"), **extra)
    assert (result.returncode, result.stdout) == (0, "serving\n6\n"), result.stderr
    return result


def fallbacks(result):
    return [line for line in result.stderr.splitlines() if "by the engine itself" in line]


def test_prespawned_workers_open_the_device_of_their_number_on_a_double_of_cuda(prespawning, runs):
    result = run(prespawning, runs, "--workers", "3")
    assert opened(runs) == [f"TinyWorker-{i} cuda:{i}" for i in range(3)]
    assert len(result.stderr.splitlines()) == 1, result.stderr
    history = tiny.history(runs)
    assert tiny.messages(history) == []
    assert list(history.of("fallback")) == []
    assert history.plan.births("worker") == ["Imported", "DeviceOpened"]  # before any orders


@pytest.mark.parametrize(
    "extra", [{"DOUBLE_KIND": "cpu"}, {"CFAC_OBSERVE": "1"}], ids=["no device", "observed only"]
)
def test_nothing_is_opened_where_nothing_should_be_on_a_double_of_cuda(prespawning, runs, extra):
    run(prespawning, runs, "--workers", "2", **extra)
    assert opened(runs) == []
    assert tiny.messages(tiny.history(runs)) == []


def test_a_condition_that_does_not_hold_opens_nothing_on_a_double_of_cuda(prespawning, runs):
    result = run(prespawning, runs, "--workers", "1")
    assert opened(runs) == [] and fallbacks(result) == []


def test_a_device_that_is_not_there_is_left_to_the_engine_on_a_double_of_cuda(prespawning, runs):
    result = run(prespawning, runs, "--workers", "2", DOUBLE_COUNT="1")
    assert opened(runs) == ["TinyWorker-0 cuda:0"]
    (line,) = [line for line in result.stderr.splitlines() if "not opened early" in line]
    assert "there is no cuda:1, of 1 visible" in line
    assert fallbacks(result) == [] and tiny.messages(tiny.history(runs)) == []


LATE = """
import os, sys
sys.argv += ["--workers", "2"]
from tinyengine import core, frontend
class Core(core.Core):
    def __init__(self, *arguments, **keywords):
        os.environ["CUDA_VISIBLE_DEVICES"] = "1,0"
        super().__init__(*arguments, **keywords)
core.Core = Core
if __name__ == "__main__":
    engine = frontend.Engine(2)
    print(engine.add([1, 2, 3]))
    engine.close()
"""


def test_a_device_opened_before_its_variables_are_set_is_given_up_on_a_double_of_cuda(
    prespawning, runs
):
    """The engine hides a device after its workers have opened theirs: too late for these."""
    result = tiny.run_script(prespawning, runs, LATE, DOUBLE_LOG=str(runs.parent / "opened"))
    assert result.stdout == "6\n", result.stderr
    reasons = fallbacks(result)
    assert len(reasons) == 2, result.stderr
    assert all("opened before CUDA_VISIBLE_DEVICES was set" in line for line in reasons)


USED = """
import sys
from tinyengine.frontend import Engine
if __name__ == "__main__":
    import torch
    torch.cuda.set_device(0)
    engine = Engine(2)
    print(engine.add([1, 2, 3]))
    engine.close()
"""


def test_no_fork_beside_an_initialised_device_of_a_double_of_cuda(forking, runs):
    result = tiny.run_script(forking, runs, USED, DOUBLE_LOG=str(runs.parent / "opened"))
    assert result.stdout == "6\n", result.stderr
    assert len(fallbacks(result)) == 1, result.stderr
    assert "core is started by the engine itself: the device is initialised (cuda)" in result.stderr
    history = tiny.history(runs)
    assert [event["c"] for event in history.of("fallback")] == ["core"]
    assert tiny.messages(history) == []


DRIVER = "int cuDeviceGetCount(int *count) { *count = 1; return %d; }\n"


@pytest.mark.parametrize(("answer", "refused"), [(0, True), (3, False), (34, False)])
def test_the_driver_says_whether_it_is_initialised_by_a_double_of_libcuda(
    tmp_path, answer, refused
):
    """cuda.h: 0 is CUDA_SUCCESS, 3 CUDA_ERROR_NOT_INITIALIZED, 34 CUDA_ERROR_STUB_LIBRARY."""
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or "cc"
    (tmp_path / "driver.c").write_text(DRIVER % answer)
    library = tmp_path / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
    subprocess.run([*command, str(tmp_path / "driver.c")], check=True)
    code = (
        "import ctypes, json, sys\n"
        "from cfac.runtime import device\n"
        "before = device.in_use()\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "print(json.dumps([before, device.in_use()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(library)],
        env=os.environ | {"PYTHONPATH": str(tiny.ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = json.loads(done.stdout)
    assert before is None
    said = "the device is initialised (the CUDA driver, not by torch)"
    assert after == (said if refused else None)


RECORDED = FAST.replace("import: [", "import: [recorded, ", 1)


def test_what_was_recorded_for_another_torch_is_not_imported_on_a_double_of_cuda(tmp_path):
    """A module for a CPU may exchange parts of torch when it is imported."""
    engine = tmp_path / "tree"
    recording = {
        "cfac": 1,
        "kind": "Imports",
        "runs": 1,
        "engine": {"package": "tinyengine", "version": None, "torch": "cpu"},
        "components": {
            name: [{"until": state, "modules": modules} for state, modules in intervals]
            for name, intervals in {
                "frontend": [("ConfigReady", ["tinyengine.shadow"]), ("Ready", [])],
                "core": [
                    ("Constructed", ["tinyengine.shadow"]),
                    ("HandleReady", []),
                    ("Ready", []),
                ],
                "worker": [("Constructed", ["tinyengine.shadow"]), ("Ready", [])],
            }.items()
        },
    }

    def prepare(target):
        doubles(target)
        (target / "tinyengine" / "shadow.py").write_text("print('imported', flush=True)\n")
        (target / "startup.imports.json").write_text(json.dumps(recording))

    tiny.patched_copy(engine, RECORDED, prepare)
    for built, expected in (("13.0", "6\n"), ("", "imported\n6\n")):
        runs = tmp_path / f"runs-{built}"
        script = "import torch\n" + USED.replace("torch.cuda.set_device(0)", "pass")
        result = tiny.run_script(engine, runs, script, DOUBLE_BUILT=built, DOUBLE_LOG="/dev/null")
        assert result.stdout == expected, result.stderr
        said = "recorded is for a torch built for cpu, and this one is for cuda"
        assert result.stderr.count(said) == bool(built)  # once, though there are three processes
        assert tiny.messages(tiny.history(runs)) == []
