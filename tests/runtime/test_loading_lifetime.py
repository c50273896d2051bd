"""Who owns what, for how long: tensors, the ring, threads, descriptors, processes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import checkpoints
import pytest
from checkpoints import (
    by_library,
    descriptors,
    filled,
    memory_kb,
    no_threads,
    raw,
    same,
    threads,
    write,
)

import cfac
from cfac.runtime.loading import LoadError

CHUNK = 1 << 16


@pytest.fixture
def medium(tmp_path):
    """3 MB in tensors from empty to 1 MB."""
    sizes = (1, 0, 1000, 16_000, 17, 250_000, 3, 100_000, 40_000, 300_000)
    return write(tmp_path / "medium.safetensors", filled(7, *sizes), pad=5)


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("backend", checkpoints.BACKENDS)
def test_tensors_outlive_everything_and_are_never_overwritten(medium, views, backend):
    model = cfac.load(medium, views=views, backend=backend, chunk_size=CHUNK, ring=2)
    first = dict(model)
    second = dict(model)
    model.close()
    del model
    gc.collect()
    for tensor in second.values():
        tensor.fill_(1)  # tensors are writable, and not each other's
    same(first, by_library(medium))


@pytest.mark.parametrize("views", [False, True])
def test_a_held_tensor_three_times_the_ring_loads(tmp_path, views):
    path = write(tmp_path / "m.safetensors", filled(8, 10, 6 * CHUNK // 4, 10, 6 * CHUNK // 4))
    model = cfac.load(path, views=views, chunk_size=CHUNK, ring=2, backend="pread")
    held = []
    for name, tensor in model:
        held.append((name, tensor))
        time.sleep(0.01)
    same(dict(held), by_library(path))


def test_views_share_a_buffer_and_owned_tensors_do_not(tmp_path):
    path = write(tmp_path / "m.safetensors", filled(9, 1000, 1000, 1000))
    views = cfac.load(path, views=True)
    kept = dict(views)
    assert views.report.counters["views"] == 3
    addresses = sorted(tensor.data_ptr() for tensor in kept.values())
    assert addresses[2] - addresses[0] == 8000
    owned = cfac.load(path)
    list(owned)
    assert (owned.report.counters["views"], owned.report.counters["owned"]) == (0, 3)


def test_an_iterator_closed_early_leaves_nothing(medium):
    before = descriptors()
    model = cfac.load(medium, chunk_size=4096, ring=2, backend="io_uring")
    for count in range(1, 6):
        kept = []
        for _, tensor in model:
            kept.append(tensor)
            if len(kept) == count:
                break
        gc.collect()
        assert no_threads()
        expected = list(by_library(medium).values())
        assert [raw(tensor) for tensor in kept] == [raw(tensor) for tensor in expected[:count]]
    assert descriptors() == before


def test_closing_the_loader_ends_its_iterators(medium):
    with cfac.load(medium, chunk_size=4096) as model:
        iterator = iter(model)
        name, tensor = next(iterator)
        assert threads()
    assert no_threads()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)
    assert raw(tensor) == raw(by_library(medium)[name])
    for use in (lambda: list(model), lambda: model.get(name), lambda: model.load_into({})):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_two_iterators_at_once(medium):
    model = cfac.load(medium, chunk_size=4096, ring=2, views=True)
    pairs = list(zip(model, model, strict=True))
    same(dict(one for one, _ in pairs), by_library(medium))
    same(dict(two for _, two in pairs), by_library(medium))


def test_a_file_that_changes_or_ends_early_is_an_error(medium):
    model = cfac.load(medium, chunk_size=4096)
    iterator = iter(model)
    next(iterator)
    os.truncate(medium, 100_000)
    with pytest.raises(LoadError, match=r"medium.*(shorter|changed)") as caught:
        list(iterator)
    assert caught.value.code in ("SHRANK", "CHANGED")
    assert no_threads()
    with pytest.raises(LoadError, match="changed") as caught:
        list(model)
    with pytest.raises(LoadError, match="changed"):
        model.get("t0")


def test_after_a_fork_the_child_is_told_and_may_load_itself(medium):
    model = cfac.load(medium, chunk_size=4096, ring=2, views=True)
    expected = by_library(medium)
    iterator = iter(model)
    name, tensor = next(iterator)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert raw(tensor) == raw(expected[name])
            with pytest.raises(LoadError, match="forked"):
                next(iterator)
            del tensor
            same(dict(model), expected)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    same(dict([(name, tensor), *iterator]), expected)


SLOW = """
import os, sys, time, cfac
model = cfac.load(sys.argv[1], chunk_size=4096, ring=2, views=True)
held = list(model)
print("ready", flush=True)
try:
    while True:  # loads until told to stop
        for name, tensor in model:
            held = [tensor]
except KeyboardInterrupt:
    tasks = os.listdir("/proc/self/task")
    names = [open(f"/proc/self/task/{t}/comm").read().strip() for t in tasks]
    del name, tensor, held
    print("interrupted", names.count("cfac"), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_in_the_middle(medium, number):
    command = [sys.executable, "-c", SLOW, medium]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(number)
        out, _ = process.communicate(timeout=300)
    if number == signal.SIGINT:
        assert (out, process.returncode) == ("interrupted 0\n", 0)
    else:
        assert process.returncode == -number


def test_a_process_may_end_with_everything_open(medium):
    script = """
import sys, threading, cfac
def forever():
    while True:
        for _, held in cfac.load(sys.argv[1], chunk_size=4096, ring=2):
            ready.set()
            never.wait()  # not in torch: CPython ends a daemon thread wherever it is
ready, never = threading.Event(), threading.Event()
model = cfac.load(sys.argv[1], chunk_size=4096, ring=2, views=True)
iterator = iter(model)
held = [next(iterator) for _ in range(4)]
threading.Thread(target=forever, daemon=True).start()
assert ready.wait(60)
"""
    subprocess.run([sys.executable, "-c", script, medium], check=True, timeout=300)


def test_an_interrupt_while_waiting_for_a_read_that_a_test_build_delays(tmp_path, faulty):
    path = write(tmp_path / "m.safetensors", filled(1, 100))
    script = f"""
import os, signal, sys, threading, time, torch
sys.path.insert(0, {str(Path(__file__).parent)!r})
import cfac
from checkpoints import with_faults
model = with_faults(cfac.load({str(path)!r}), delay_chunk=1, delay_ms=5000)
main, sent, seen = threading.main_thread().ident, [], []

def send():
    sent.append(time.monotonic())
    signal.pthread_kill(main, signal.SIGINT)

def see(*_):
    seen.append(time.monotonic())
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, see)
threading.Timer(1, send).start()
try:
    next(iter(model))
except KeyboardInterrupt:  # seen while the read went on, whose end is waited for
    print("during the read" if seen[0] - sent[0] < time.monotonic() - seen[0] else "after it")
"""
    environment = os.environ | {"CFAC_NATIVE_LIBRARY": str(faulty)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "during the read\n", done.stderr


def test_a_load_leaves_an_object_per_tensor(tmp_path):
    """The collector counts objects: few of them, and a load of thousands does not call it."""
    path = write(tmp_path / "m.safetensors", filled(4, *[8] * 2000))
    list(cfac.load(path))  # imports
    gc.collect()
    gc.disable()
    try:
        before = {id(one) for one in gc.get_objects()}
        held = dict(cfac.load(path))
        made = [one for one in gc.get_objects() if id(one) not in before]
    finally:
        gc.enable()
    assert len(held) == 2000
    assert all(tensor._base is None for tensor in held.values())
    assert len(made) < 2100


def test_memory_is_bounded_and_given_back(tmp_path):
    """A consumer that drops what it gets: ring and window while loading, nothing after."""
    size, chunk, ring = 4 << 20, 1 << 20, 4
    path = write(tmp_path / "m.safetensors", filled(3, *[size // 4] * 40))
    list(cfac.load(path, names=["t0"], chunk_size=chunk, ring=ring))  # imports, first arenas
    gc.collect()
    before = memory_kb("Pss_Anon")
    most = 0
    for backend in ("pread", "buffered"):
        for _, tensor in cfac.load(path, chunk_size=chunk, ring=ring, backend=backend):
            most = max(most, memory_kb("Pss_Anon"))
            del tensor
    gc.collect()
    after = memory_kb("Pss_Anon")
    # The ring, a ring's worth and a tensor that nobody took yet, the one held, a ring's worth that
    # was dropped and waits to be used again.
    bound = (3 * ring * chunk + 2 * size) // 1024
    assert most - before <= bound + 2048, (before, most, after)
    assert after - before <= 4096, (before, most, after)


def test_loading_into_takes_no_memory_beside_the_ring(tmp_path):
    import torch

    path = write(tmp_path / "m.safetensors", filled(3, *[1 << 20] * 16))
    targets = {f"t{i}": torch.ones(1 << 20) for i in range(16)}
    checkpoints.evict(path)
    model = cfac.load(path, chunk_size=1 << 20, ring=3, backend="pread")
    model.load_into({"t0": targets["t0"]})
    gc.collect()
    before, most, stop = memory_kb("Pss_Anon"), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not stop.wait(0.002):
            most = max(most, memory_kb("Pss_Anon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    report = model.load_into(targets)
    stop.set()
    watcher.join()
    assert report.counters["buffers_peak"] <= 3
    assert most - before <= 3 * 1024 + 6144, (before, most)
    same(targets, by_library(path))
