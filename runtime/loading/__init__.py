"""``cfac.load``: tensors from safetensors files, read in chunks by the C library (native/).

    with cfac.load("model/") as model:            # a file, several, a folder, an index
        for name, tensor in model:                # in file order; the tensors are the caller's
            ...
        model.get("lm_head.weight", slice(0, 64)) # one tensor, or some rows of one
        model.load_into(dict(net.named_parameters()))

``load(files, device="cpu", group=None, *, names, slices, chunk_size, ring, backend, views,
progress, checksums, trace)`` gives a `Loader`: iterable as often as wanted, with ``len``, ``in``,
``tensors`` (name -> `TensorInfo`, in file order), ``metadata``, ``get``, ``load_into``,
``allocate``, ``manifest``, ``report`` (of the last pass) and ``close``.  All headers are checked
when it is made: whatever is wrong with a file is one exception (`HeaderError`, `IndexFileError`,
OSError) before any tensor is handed out.

With ``group=`` the ranks of a `torch.distributed` group load the same together and read each byte
once; all must make the same calls, and if one fails all raise (`GroupError`).

torch is imported when the first tensor is made, nowhere else; the rest is the standard library.
"""

from cfac.native.binding import HeaderError, LoadError, NativeMissingError
from cfac.native.files import IndexFileError
from cfac.runtime.loading.distributed import GroupError
from cfac.runtime.loading.dtypes import UnsupportedTensorError
from cfac.runtime.loading.loader import Loader, load
from cfac.runtime.loading.manifest import ChecksumError, Manifest, ManifestError
from cfac.runtime.loading.model import TensorInfo
from cfac.runtime.loading.report import Report

__all__ = [
    "ChecksumError",
    "GroupError",
    "HeaderError",
    "IndexFileError",
    "LoadError",
    "Loader",
    "Manifest",
    "ManifestError",
    "NativeMissingError",
    "Report",
    "TensorInfo",
    "UnsupportedTensorError",
    "load",
]
