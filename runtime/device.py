"""Devices: opening a process's own early, and what speaks against a fork beside one.

A device's context belongs to one process: the child of a fork cannot use it (CUDA C++
Programming Guide: the driver's state is not inherited).  So a process opens its device
itself, with torch, and nothing is forked from it later.  Torch is never imported for a
question: only where a spec says that a device is to be opened.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

#: What torch can open as ``torch.KIND``.
KINDS = ("cuda", "xpu")
#: Environment variables that drivers and torch's allocator read when a device is first
#: used begin with one of these: set later, they come too late.
READ_AT_OPENING = (
    "CUDA_",
    "HIP_",
    "HSA_",
    "NVIDIA_",
    "ONEAPI_",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "ROCR_",
    "SYCL_",
    "ZE_",
)
#: cuda.h: of a call before cuInit() in this process it is CUDA_ERROR_NOT_INITIALIZED.
_CUDA_SUCCESS = 0


def named(kind: str) -> str | None:
    """The kind of device that ``kind`` stands for, if it can be opened.

    ``module:attribute`` is looked up; what cannot be raises.
    """
    module, colon, path = kind.partition(":")
    found: Any = kind
    if colon:
        found = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    return found if found in KINDS else None


def open_context(kind: str, index: int) -> None:
    """Make this process's context on a device.  Raises where it cannot be."""
    import torch

    api: Any = getattr(torch, kind)
    count = api.device_count()
    if index >= count:
        raise RuntimeError(f"there is no {kind}:{index}, of {count} visible")
    api.set_device(index)
    api.synchronize(index)


def too_late(changed: Iterable[str]) -> str | None:
    """A key among those of the environment that a device which is open has read already."""
    return next((key for key in sorted(changed) if key.startswith(READ_AT_OPENING)), None)


def in_use() -> str | None:
    """Why a fork of this process would have a dead device in its child; None: nothing known."""
    torch = sys.modules.get("torch")
    for name in KINDS:
        initialized = getattr(getattr(torch, name, None), "is_initialized", None)
        if initialized is not None and initialized():
            return f"the device is initialised ({name})"
    if _driver_initialised():
        return "the device is initialised (the CUDA driver, not by torch)"
    if "microsoft" in os.uname().release.lower():
        return "under WSL the GPU's management library does not outlive a fork"
    return None


def _driver_initialised() -> bool:
    """Whether somebody has called cuInit() here.

    Counting devices by the runtime library does (cudaGetDeviceCount), and torch does not
    say so.  A library that is not loaded is not loaded for this (dlopen(3), RTLD_NOLOAD).
    """
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        count = ctypes.c_int()
        return bool(driver.cuDeviceGetCount(ctypes.byref(count)) == _CUDA_SUCCESS)
    except (OSError, AttributeError):
        return False


def torch_build() -> str | None:
    """What the torch in this process was built for: cpu, cuda, hip or xpu; None: there is none."""
    version = getattr(sys.modules.get("torch"), "version", None)
    if version is None:
        return None
    return next((k for k in ("hip", "cuda", "xpu") if getattr(version, k, None)), "cpu")
