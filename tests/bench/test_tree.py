"""The process tree that the benchmarks measure: real processes, made here."""

from __future__ import annotations

import subprocess
import sys
import time

import tree
from bench_support import in_a_process

SPIN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\n"


def test_cpu_seconds_counts_descendants_that_run_and_that_ended():
    before, without = tree.cpu_seconds(), tree.cpu_seconds(own=False)
    subprocess.run([sys.executable, "-c", SPIN], check=True, capture_output=True)
    ended = tree.cpu_seconds() - before
    assert 0.25 < ended < 3
    command = [sys.executable, "-c", SPIN + "time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(0.05)
        assert 0.25 < tree.cpu_seconds() - before - ended < 3
        assert 0.5 < tree.cpu_seconds(own=False) - without < 6
        process.kill()


def test_own_cpu_seconds_are_left_out():
    before, without = tree.cpu_seconds(), tree.cpu_seconds(own=False)
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    assert tree.cpu_seconds(own=False) - without < 0.05
    assert tree.cpu_seconds() - before > 0.25


def test_the_machine_is_busy_at_least_as_long_as_a_child():
    before = tree.machine_seconds()
    subprocess.run([sys.executable, "-c", SPIN], check=True, capture_output=True)
    assert tree.machine_seconds() - before > 0.25


def test_memory_is_that_of_the_tree_and_shared_pages_count_once():
    code = (
        "import mmap, os, sys\nshared = mmap.mmap(-1, 64 << 20)\nshared.write(bytes(64 << 20))\n"
        "child = os.fork()\nif not child: shared.seek(0); shared.read()\n"
        "print(flush=True)\nsys.stdin.read()\n"
    )
    before = tree.pss_mib()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        for _ in range(2):
            process.stdout.readline()
        assert 64 < tree.pss_mib() - before < 110
        process.stdin.close()


def test_what_does_not_end_is_killed_and_named():
    code = """
import subprocess, sys, tree
tree.adopt_orphans()
inner = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
for nap in ("0.3", "600"):  # orphans: one that ends by itself, one that does not
    nap = f"import time; time.sleep({nap})"
    subprocess.run([sys.executable, "-c", inner, nap], check=True, start_new_session=True)
left = tree.end_descendants(2.0)
print(len(left), left[0].endswith("time.sleep(600)"), tree.descendants())
"""
    done = in_a_process(code)
    assert done.stdout.strip() == "1 True {}", done.stderr
