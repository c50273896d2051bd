"""vLLM's plugin entry point: makes ``--load-format cfac`` known, without a patch.

vLLM calls `register` in every process of every start (``vllm.general_plugins``), whether or not
cfac is asked for.  So this module imports nothing heavy, and the loader is registered only when
vLLM imports its own loaders.
"""

from __future__ import annotations

from cfac.runtime.deferred import later

FORMAT = "cfac"
_LOADERS = "vllm.model_executor.model_loader"
_registered = False


def register() -> None:
    """Register the loader once vLLM's loaders are there.  Twice in a process is once."""
    global _registered
    if not _registered:
        _registered = True
        later(_register, until=_LOADERS)()


def _register() -> None:
    from vllm.model_executor.model_loader import register_model_loader

    from cfac.runtime.loading.vllm_loader import loader_class

    register_model_loader(FORMAT)(loader_class())
