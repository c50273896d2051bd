"""Parameters' memory, faulted in beside the loading."""

import ctypes
import threading
import time

import pytest
import torch

from cfac.runtime.loading.faulting import faulted_in

SIZE = 96 << 20
PATIENCE = 60  # seconds


def resident(tensor) -> float:
    """The share of a tensor's whole pages that is in memory (mincore(2))."""
    begin = -(-tensor.data_ptr() // 4096) * 4096
    pages = (tensor.data_ptr() + tensor.nbytes - begin) // 4096
    seen = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None)
    assert libc.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(pages * 4096), seen) == 0
    return sum(byte & 1 for byte in seen) / pages


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "cfac-faults"]


def test_untouched_memory_is_there_and_what_was_written_stays():
    written, fresh = torch.full((SIZE,), 7, dtype=torch.uint8), torch.empty(SIZE, dtype=torch.uint8)
    assert resident(fresh) < 0.1
    with faulted_in([written, fresh, fresh.view(2, -1), torch.empty(9, device="meta")]):
        until = time.monotonic() + PATIENCE
        while resident(fresh) < 1 and time.monotonic() < until:
            time.sleep(0.01)
    assert resident(fresh) == 1
    assert bool((written == 7).all())
    assert threads() == []


@pytest.mark.parametrize("failing", [False, True])
def test_it_ends_with_the_block(failing):
    fresh = torch.empty(16 * SIZE, dtype=torch.uint8)
    try:
        with faulted_in([fresh]):
            assert threads() == ["cfac-faults"]
            if failing:
                raise KeyError
    except KeyError:
        assert failing
    assert threads() == []
    assert resident(fresh) < 1


def test_a_small_model_is_not_worth_a_thread():
    with faulted_in([torch.empty(1000), torch.empty(0)]):
        assert threads() == []
