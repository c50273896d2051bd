"""``cfac.load`` and what it gives."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal

from cfac.native import sizing
from cfac.native.files import Path, find
from cfac.runtime.loading import job as jobs
from cfac.runtime.loading.cache import Hold, resolve
from cfac.runtime.loading.distributed import Circle, check_equal, fingerprint, shared
from cfac.runtime.loading.job import Job, Plan, Settings
from cfac.runtime.loading.manifest import Manifest, grid_starts
from cfac.runtime.loading.memory import shaped
from cfac.runtime.loading.model import Model, TensorInfo
from cfac.runtime.loading.progress import Progress
from cfac.runtime.loading.reading import Checker, Pass, local, record
from cfac.runtime.loading.report import Report
from cfac.runtime.loading.selection import (
    Names,
    Slice,
    Slices,
    Wanted,
    Whole,
    check_types,
    choose,
    fill_chunks,
    lookup,
    nbytes,
    part,
    want,
)
from cfac.runtime.loading.targets import Targets, sort_targets

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

#: name -> (cfac_backend, cfac_direct)
BACKENDS: Final = {
    "auto": (0, jobs.DIRECT_AUTO),
    "io_uring": (1, jobs.DIRECT_ALWAYS),
    "libaio": (2, jobs.DIRECT_ALWAYS),
    "pread": (3, jobs.DIRECT_ALWAYS),
    "buffered": (3, jobs.DIRECT_NEVER),
}
Backend = Literal["auto", "io_uring", "libaio", "pread", "buffered"]
Prepare = Callable[[], "tuple[Sequence[Wanted], Targets]"]
_LARGE: Final = 16 << 20  # bytes from which one tensor is worth a job with threads
_PAGE: Final = 4096
_CHUNK: Final = 8 << 20
_RING: Final = 16
_MOST_RING: Final = 4096


def load(
    files: Path | Iterable[Path],
    device: str | torch.device = "cpu",
    group: ProcessGroup | None = None,
    *,
    names: Names | None = None,
    slices: Slices | None = None,
    chunk_size: int | Literal["auto"] = "auto",
    ring: int = 0,
    backend: Backend = "auto",
    views: bool = False,
    progress: bool | None = None,
    checksums: str | os.PathLike[str] | Manifest | None = None,
    trace: bool = False,
    cache: bool = True,
) -> Loader:
    """Open safetensors files, check their headers, and give a `Loader` of their tensors.

    ``files``: a file, a folder (its index, else all its ``*.safetensors``), an index, or several.
    ``device``: where tensors go.
    ``group``: a `torch.distributed` group whose ranks load the same together: each byte is read by
    one of them. All must call the same methods in the same order.
    ``names``: which tensors: a glob, a regular expression, a function, or a collection of names.
    ``slices``: which part of them: name -> slice or tuple of slices, or a function of `TensorInfo`.
    ``chunk_size``: bytes, a multiple of 4096; ``"auto"``: by size, file system and memory.
    ``ring``: chunk buffers at most; 0: 16, less where memory is scarce.
    ``backend``: ``"auto"`` reads buffered what the page cache has and directly what it has not;
    ``"io_uring"``, ``"libaio"`` and ``"pread"`` force direct reads, ``"buffered"`` forbids them.
    ``views``: tensors may be views of the ring's buffers, which saves copies if they are soon
    dropped; one that is kept holds a whole chunk. By default each has memory of its own.
    ``progress``: a line on stderr; None: if that is a terminal.
    ``checksums``: a manifest that every chunk is compared with.
    ``trace``: record time stamps and the path of every chunk in ``report``.
    ``cache``: read copies that ``cfac cache add`` made in memory, where there are any.

    HeaderError and IndexFileError (both ValueError), OSError: a file is not as it should be.
    KeyError, ValueError: names and slices that do not fit. NativeMissingError: no C library.
    """

    def make() -> Loader:
        return _make(
            *(files, device, names, slices, chunk_size, ring, backend, views, progress),
            *(checksums, trace, cache),
        )

    if group is None:
        return make()
    circle = Circle(group)
    loader, limits = circle.together(make, Loader._limits)
    loader._circle = circle if circle.ranks > 1 else None
    places, left = zip(*limits, strict=True)
    loader._agreed = sizing.slowest(places), min(left)
    return loader


def _make(
    files: Path | Iterable[Path],
    device: str | torch.device,
    names: Names | None,
    slices: Slices | None,
    chunk_size: int | Literal["auto"],
    ring: int,
    backend: Backend,
    views: bool,
    progress: bool | None,
    checksums: str | os.PathLike[str] | Manifest | None,
    trace: bool,
    cache: bool,
) -> Loader:
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is none of {', '.join(BACKENDS)}")
    if chunk_size != "auto" and (chunk_size < _PAGE or chunk_size % _PAGE):
        raise ValueError(f"chunk_size {chunk_size} is no multiple of {_PAGE}")
    if ring != 0 and not 2 <= ring <= _MOST_RING:
        raise ValueError(f"ring {ring} is not 2 to {_MOST_RING} buffers, or 0")
    number, direct = BACKENDS[backend]
    cuda = _cuda_index(device)
    settings = Settings(number, direct, ring, device=cuda, views=views or cuda >= 0, events=trace)
    manifest = checksums
    if manifest is not None and not isinstance(manifest, Manifest):
        manifest = Manifest.read(manifest)
    if manifest is not None and chunk_size not in ("auto", manifest.chunk_size):
        raise ValueError(f"chunk_size {chunk_size} is not the manifest's {manifest.chunk_size}")
    found, held = resolve(find(files)) if cache else (find(files), None)
    try:
        return Loader(
            *(Model(found), device, names, slices, chunk_size, settings, progress, manifest, held)
        )
    except BaseException:
        if held is not None:
            held.release()
        raise


class Loader:
    """The tensors of some files: see ``cfac.load``.

    Every iteration reads anew. ``tensors`` are those selected, in file order; ``report`` tells of
    the last pass that came to its end. After a fork, a child may load; an iteration that the
    parent began raises LoadError there.
    """

    def __init__(
        self,
        model: Model,
        device: str | torch.device,
        names: Names | None,
        slices: Slices | None,
        chunk_size: int | Literal["auto"],
        settings: Settings,
        progress: bool | None,
        manifest: Manifest | None,
        held: Hold | None = None,
    ) -> None:
        #: how many of the files are read from the cache in memory
        self.cached = held.count if held is not None else 0
        self._release = weakref.finalize(self, held.release) if held is not None else None
        self._model = model
        self._device = device
        self._settings = settings
        self._progress = progress
        self._manifest = manifest
        self._closed = False
        self._circle: Circle | None = None
        self._agreed: tuple[sizing.Storage, int] | None = None  # of the ranks' _limits
        self._passes: set[Pass] = set()
        self._names, self._slices = names, slices
        self._every = names is None and slices is None and not model.indexed
        if not self._every:
            self._wanted  # noqa: B018 (now: names and slices may not fit)
        self.metadata: dict[str, dict[str, str]] = model.metadata()
        self.report = Report()
        if manifest is not None:
            chunk_size = manifest.chunk_size
            manifest.check_files(model, {t.file for t in self.tensors.values()})
        self._chunk_size = chunk_size

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """What is selected, in file order."""
        return choose(self._model.tensors, self._names)

    @cached_property
    def _wanted(self) -> dict[str, Wanted]:
        return {w.tensor.name: w for w in want(self.tensors, self._slices)}

    def _named(self, names: Collection[str]) -> Sequence[Wanted]:
        """What is selected of these names, in file order; KeyError."""
        if not self._every:
            found = [self._wanted[lookup(self.tensors, name).name] for name in names]
            return sorted(found, key=lambda w: w.tensor.number)
        known = self._model.numbers
        for name in names:
            if name not in known:
                lookup(self.tensors, name)
        numbers = sorted(map(known.__getitem__, names))
        return Whole(self._model, numbers if len(numbers) < len(known) else None)

    def _selected(self) -> Sequence[Wanted]:
        return Whole(self._model) if self._every else list(self._wanted.values())

    def __len__(self) -> int:
        return len(self._model if self._every else self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is being read. Tensors that were handed out stay."""
        self._closed = True
        while self._passes:
            self._passes.pop().close()  # type: ignore[attr-defined]
        if self._release is not None:
            self._release()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) in file order.

        UnsupportedTensorError before the first one if torch cannot hold one of them.
        """

        def prepare() -> tuple[Sequence[Wanted], Targets]:
            wanted = self._selected()
            check_types(wanted)
            return wanted, Targets()

        here = str(self._device) == "cpu"
        for item, tensor in self._pass(prepare):
            yield item.tensor.name, tensor if here else self._moved(tensor)
            del tensor

    def get(self, name: str, slices: Slice | None = None) -> torch.Tensor:
        """One tensor, or a part of it; by default the part that ``load`` was told."""
        import torch

        def prepare() -> tuple[Sequence[Wanted], Targets]:
            info = lookup(self.tensors, name)
            item = self._wanted[name] if slices is None else part(info, slices)
            check_types([item])
            return [item], Targets()

        item = None if self._circle else prepare()[0][0]
        if item is None or self._manifest is not None or item.length >= _LARGE:
            ((_, tensor),) = self._pass(prepare, quiet=True)
            return self._moved(tensor)
        self._check_open()
        raw = torch.empty(item.length, dtype=torch.uint8)
        self._model.read(item.tensor, item.begin, item.length, raw.data_ptr())
        return self._moved(shaped(item, raw))

    def load_into(self, tensors: Mapping[str, torch.Tensor]) -> Report:
        """Fill existing tensors, by name, with what the files hold; gives the report.

        Data is read straight into those that are contiguous and of the file's type, and share no
        memory with another one; it is converted and copied into the others. All names and shapes
        are checked first: KeyError, ValueError.
        """

        def prepare() -> tuple[Sequence[Wanted], Targets]:
            wanted = self._named(tensors)
            check_types(wanted)
            return wanted, sort_targets(wanted, tensors, self._settings.device)

        for item, tensor in self._pass(prepare):
            tensors[item.tensor.name].detach().copy_(tensor)
            del tensor
        return self.report

    def allocate(self) -> dict[str, torch.Tensor]:
        """Tensors for `load_into`: of the right types and shapes, their memory faulted in."""
        import torch

        wanted = self._selected()
        check_types(wanted)
        made = {}
        for item in wanted:
            shape, device = item.final_shape(), self._device
            tensor = torch.empty(shape, dtype=item.dtype(), device=device)
            if tensor.numel():
                tensor.view(-1).view(torch.uint8).fill_(0)
            made[item.tensor.name] = tensor
        return made

    def manifest(self) -> Manifest:
        """The checksums of all chunks of all files, which it reads for that.

        With ``chunk_size="auto"`` chunks are of 8 MiB, whatever the files' size.
        """
        self._check_open()
        size = _CHUNK if self._chunk_size == "auto" else self._chunk_size
        return record(self._model, replace(self._settings, views=True), size)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        device = self._device
        return tensor if str(device) == "cpu" else tensor.to(device)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the loader is closed")

    def _begin(self, prepare: Prepare) -> tuple[Sequence[Wanted], Sequence[Wanted], Targets, int]:
        """(what is wanted, what is read for it, targets, chunk size)."""
        self._check_open()
        wanted, targets = prepare()
        size = self._size_for(wanted)
        reading = wanted
        if self._manifest is not None:
            starts = grid_starts(self._model)
            reading = fill_chunks(wanted, self._model.all(), starts, size)
        return wanted, reading, targets, size

    def _pass(
        self, prepare: Prepare, *, quiet: bool = False
    ) -> Iterator[tuple[Wanted, torch.Tensor]]:
        """Read what is wanted, and give all of it that has no target to be read to."""
        report = Report()
        if self._circle is None:
            wanted, reading, targets, size = self._begin(prepare)
            one = local(self._model, reading, targets, self._settings, size, self._manifest, report)
        else:
            wanted, one = self._begin_together(self._circle, prepare, report)
            quiet = quiet or (self._progress is None and self._circle.rank > 0)
        progress = Progress(nbytes(wanted), len(wanted), False if quiet else self._progress)
        self._passes.add(one)
        try:
            for size, loaded in one:
                if loaded is not None:
                    yield loaded
                del loaded
                progress.add(size)
            self._check_open()  # closed meanwhile: what came is not all
            report.tensors, report.bytes = progress.loaded, progress.bytes
            self.report = report
        finally:
            self._passes.discard(one)
            one.close()  # type: ignore[attr-defined]
            progress.end()

    def _begin_together(
        self, circle: Circle, prepare: Prepare, report: Report
    ) -> tuple[Sequence[Wanted], Pass]:
        def begin() -> tuple[Sequence[Wanted], Targets, Job, Checker | None, str]:
            wanted, reading, targets, size = self._begin(prepare)
            plan = Plan(self._model, reading, size, circle.ranks, circle.rank)
            job = Job(plan, self._settings, delivery=jobs.CHUNKS)
            checker = Checker(self._model, plan, self._manifest) if self._manifest else None
            return wanted, targets, job, checker, fingerprint(plan.items, size)

        (wanted, targets, job, checker, _), marks = circle.together(begin, itemgetter(4))
        check_equal(marks)
        return wanted, shared(circle, job, targets, checker, report)

    def _limits(self) -> tuple[sizing.Storage, int]:
        """What chunk sizes depend on: where the files lie, memory left."""
        every = self._model.paths if self._every else [t.path for t in self.tensors.values()]
        used = {os.path.dirname(path): path for path in every}
        places = sizing.slowest([sizing.storage(path) for path in used.values()])
        return places, self._model.library.cfac_memory_left(None)

    def _size_for(self, wanted: Sequence[Wanted]) -> int:
        if self._chunk_size != "auto":
            return self._chunk_size
        place, left = self._agreed or self._limits()
        total, ranks = nbytes(wanted), self._circle.ranks if self._circle else 1
        return sizing.choose(total, place, self._settings.ring or _RING, left, ranks).size


def _cuda_index(device: str | torch.device) -> int:
    """The number of a CUDA device; -1 for any other device."""
    if not str(device).startswith("cuda"):
        return -1
    import torch

    if not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r}: torch finds no CUDA device")
    index = torch.device(device).index
    return int(torch.cuda.current_device() if index is None else index)
