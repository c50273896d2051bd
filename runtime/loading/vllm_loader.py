"""The model loader behind vLLM's ``--load-format cfac`` (0.13 to 0.33).

It is vLLM's own default loader with one name bound anew: where that calls
``safetensors_weights_iterator``, the tensors come from `cfac.load`.  So which files are read
(index filter, patterns, downloads, unused shards), prefixes, secondary weights, expert filters,
the check that every parameter was loaded, and other formats than safetensors are as in stock, by
the same code.

Stock's reader is used instead, with one log line, for ``torchao`` checkpoints, if cfac's C library
is missing, memory is too short, or torch lacks a tensor's type; never after the first tensor was
handed out.  What is wrong with a file is an error, as in ``cfac.load``.

Keys of ``--model-loader-extra-config``, beside stock's: ``chunk_size``, ``ring``, ``backend``,
``views`` and ``checksums``, as in ``cfac.load``, and ``distributed`` (the ranks of tensor
parallelism read each byte once).  Tensors may be views of chunk buffers by default: models copy
most at once, and those that are kept are never overwritten.  The parameters' memory is faulted in
by a thread meanwhile.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from cfac.native.binding import NativeMissingError
from cfac.runtime.loading.dtypes import UnsupportedTensorError
from cfac.runtime.loading.faulting import faulted_in
from cfac.runtime.loading.record import record_load, recording
from cfac.runtime.loading.weights import in_stock_order, open_shards

#: What stock's reader may still manage, or say better.
FALLBACK = (NativeMissingError, UnsupportedTensorError, MemoryError)
OPTIONS = ("backend", "checksums", "chunk_size", "ring", "views")
_ITERATOR = "safetensors_weights_iterator"
_Weights = Iterator[tuple[str, Any]]

log = logging.getLogger("vllm.cfac")


def rebound(function: Any, **names: Any) -> Callable[..., Any]:
    """A copy of a function in which some of its module's names mean something else.

    NameError if it uses none of that name: it is not the function that was meant.
    """
    for name in names:
        if name not in function.__code__.co_names:
            raise NameError(f"{function.__qualname__} does not use {name}")
    made = FunctionType(
        *(function.__code__, {**function.__globals__, **names}, function.__name__),
        *(function.__defaults__, function.__closure__),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def loader_class() -> type:
    """The class to register; vLLM's loaders must be importable."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    class CfacModelLoader(DefaultModelLoader):  # type: ignore[misc]
        """vLLM's default loader, reading safetensors files with cfac."""

        def __init__(self, load_config: Any) -> None:
            stock, self.cfac_options, self.cfac_distributed = split_config(load_config)
            try:
                super().__init__(stock)
            except ValueError as error:
                raise ValueError(str(error).replace("format auto", "format cfac")) from None

        def load_weights(self, model: Any, model_config: Any) -> None:
            with faulted_in(model.parameters()):
                super().load_weights(model, model_config)

        def _get_weights_iterator(self, source: Any) -> _Weights:
            stock = DefaultModelLoader._get_weights_iterator
            group = tensor_group() if self.cfac_distributed else None
            reader = partial(read, self.cfac_options, group)
            try:
                method = rebound(stock, **{_ITERATOR: reader})
            except (NameError, AttributeError) as error:
                log.warning("cfac: this vLLM's loader is another one (%s): it reads itself", error)
                method = stock
            return method(self, source)  # type: ignore[no-any-return]

    return CfacModelLoader


def split_config(load_config: Any) -> tuple[Any, dict[str, Any], bool]:
    """(the config for the stock loader, options of ``cfac.load``, whether ranks read together).

    ValueError for values that do not fit; the stock loader refuses keys that it does not know.
    """
    extra = load_config.model_loader_extra_config
    if not isinstance(extra, dict):
        raise ValueError(f"model_loader_extra_config is no object: {extra!r}")
    extra = dict(extra)
    options = {key: extra.pop(key) for key in OPTIONS if key in extra}
    distributed = extra.pop("distributed", False)
    for key, value in (("distributed", distributed), ("views", options.get("views", True))):
        if not isinstance(value, bool):
            raise ValueError(f"model_loader_extra_config: {key} is true or false, not {value!r}")
    stock = copy.copy(load_config)
    stock.load_format, stock.model_loader_extra_config = "auto", extra
    return stock, {"views": True, **options}, distributed


def tensor_group() -> Any:
    """The ranks of tensor parallelism as a `torch.distributed` group, or None for one rank.

    On CUDA the device's group (NCCL), else the one of the host's memory (gloo).
    """
    import torch
    from vllm.distributed import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        return None
    return group.device_group if torch.cuda.is_available() else group.cpu_group


def read(
    options: dict[str, Any],
    group: Any,
    files: Sequence[str],
    use_tqdm_on_load: bool,
    safetensors_load_strategy: str | None = None,
    local_expert_ids: set[int] | None = None,
    **others: Any,
) -> _Weights:
    """What vLLM's ``safetensors_weights_iterator`` gives, in the same order, by ``cfac.load``."""
    from vllm.model_executor.model_loader import weight_utils

    if local_expert_ids is not None:  # 0.13 knows none
        others["local_expert_ids"] = local_expert_ids
    iterate = getattr(weight_utils, _ITERATOR)
    stock = partial(iterate, files, use_tqdm_on_load, safetensors_load_strategy, **others)
    if safetensors_load_strategy == "torchao":
        log.info("cfac: a torchao checkpoint is read by vLLM's own reader")
        yield from stock()
        return
    begun = False
    try:
        for pair in _read(options, group, files, use_tqdm_on_load, local_expert_ids):
            begun = True
            yield pair
            del pair
        return
    except FALLBACK as error:
        if begun:
            raise
        log.warning("cfac: vLLM's own reader is used: %s", error)
    yield from stock()


def _read(
    options: dict[str, Any],
    group: Any,
    files: Sequence[str],
    use_tqdm_on_load: bool,
    local_expert_ids: set[int] | None,
) -> _Weights:
    from tqdm.auto import tqdm
    from vllm.model_executor.model_loader import weight_utils

    natural = getattr(weight_utils, "_natural_sort_key", None)  # 0.13 keeps the order
    ordered = list(files) if natural is None else sorted(files, key=natural)
    skip = None
    if local_expert_ids is not None:
        from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

        skip = partial(_skips, should_skip_weight, local_expert_ids)
        group = None  # the ranks want different tensors
    watched = recording()
    loaders = open_shards(ordered, skip, group=group, progress=False, trace=watched, **options)
    if cached := sum(loader.cached for loader in loaders):
        log.info("cfac: %d of %d files are in memory (cfac cache)", cached, len(ordered))
    bar = tqdm(
        total=len(ordered),
        desc="Loading safetensors checkpoint shards (cfac)",
        disable=not weight_utils.enable_tqdm(use_tqdm_on_load),
        bar_format=weight_utils._BAR_FORMAT,
    )
    done = 0
    with bar:
        for loader in loaders:
            with loader:
                paths = {path: number for number, path in enumerate(loader.metadata, 1)}
                for info, tensor in in_stock_order(loader):
                    before = done + paths[info.path] - 1
                    bar.update(before - bar.n)
                    yield info.name, tensor
                    del tensor
                done += len(paths)
                bar.update(done - bar.n)
                if watched:
                    record_load(loader)


def _skips(should_skip: Callable[..., bool], experts: set[int], name: str) -> bool:
    return should_skip(name, experts)
