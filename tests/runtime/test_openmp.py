import os
import subprocess
import sys

import pytest

from cfac.runtime.openmp import bound_cpus, restore


@pytest.mark.parametrize(
    ("environment", "cpus"),
    [
        ({"OMP_PLACES": "{0,3}"}, {0, 3}),
        ({"GOMP_CPU_AFFINITY": "1 2"}, {1, 2}),
        ({"KMP_AFFINITY": "granularity=fine,explicit,proclist=[4,5]"}, {4, 5}),
        ({"OMP_PLACES": "cores"}, None),
        ({}, None),
    ],
)
def test_the_cpus_that_an_environment_binds_to(environment, cpus):
    assert bound_cpus(environment) == cpus


def test_a_forked_process_gets_its_binding():
    cpu = min(os.sched_getaffinity(0))
    code = (
        "import os\n"
        "from cfac.runtime.openmp import restore\n"
        "if os.fork() == 0:\n"
        f"    restore({{'OMP_PLACES': '{{{cpu}}}', 'OMP_NUM_THREADS': '1'}})\n"
        "    print(sorted(os.sched_getaffinity(0)), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == f"[{cpu}]", result.stderr


def test_a_cpu_that_may_not_be_used_is_an_error():
    with pytest.raises(OSError):
        restore({"OMP_PLACES": "{4095}"})
