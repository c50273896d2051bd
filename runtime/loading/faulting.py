"""Memory that is about to be loaded into, faulted in by a thread meanwhile.

A model's parameters are memory that nothing has touched: who writes to them first waits for the
kernel to clear page by page, as long as the copy itself takes or longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of madvise(2), Linux 5.14: changes no content
_STEP = 16 << 20  # bytes, after which the thread looks whether it has to end
_LEAST = 64 << 20  # bytes that are worth a thread


@contextlib.contextmanager
def faulted_in(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Fault the pages of the tensors in host memory in, in their order, beside the block.

    Nothing else happens to them, and nothing fails: what cannot be faulted in is left as it is.  A
    tensor is not kept longer than until its pages are there.
    """
    left = _storages(tensors)
    if sum(one.nbytes() for one in left) < _LEAST:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_fault, args=(left, over), name="cfac-faults", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _storages(tensors: Iterable[torch.Tensor]) -> deque[torch.UntypedStorage]:
    found = {}
    for tensor in tensors:
        if tensor.device.type == "cpu":
            with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse, and the like
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = storage
    return deque(found.values())


def _fault(left: deque[torch.UntypedStorage], over: threading.Event) -> None:
    madvise = ctypes.CDLL(None).madvise  # a call of which waits without the interpreter's lock
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    while left:
        storage = left.popleft()
        begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        for at in range(begin - begin % mmap.PAGESIZE, end, _STEP):
            if over.is_set():
                return
            if madvise(at, min(_STEP, end - at), _POPULATE_WRITE):
                break
        del storage
