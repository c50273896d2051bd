"""One pass over what is wanted: from a plan to tensors, in this process.

Distributed passes are `distributed.py`.  Both give (bytes, what is wanted and its tensor) in file
order, or (bytes, None) where data was read straight into its target.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from cfac.runtime.loading import job as jobs
from cfac.runtime.loading.job import Job, Plan, Settings, packed_target
from cfac.runtime.loading.manifest import ChecksumError, Manifest, ManifestError, grid_starts
from cfac.runtime.loading.memory import over
from cfac.runtime.loading.model import Model
from cfac.runtime.loading.report import Report
from cfac.runtime.loading.selection import Wanted, Whole, whole
from cfac.runtime.loading.targets import Targets

if TYPE_CHECKING:
    import torch

Pass = Iterator[tuple[int, "tuple[Wanted, torch.Tensor] | None"]]


class Checker:
    """Compares the checksums of chunks with a manifest, each once, in their order."""

    def __init__(self, model: Model, plan: Plan, manifest: Manifest) -> None:
        self.model, self.plan, self.manifest = model, plan, manifest
        self.starts = grid_starts(model)
        self.chunks = plan.chunks()
        self.done = 0

    def check(self, index: int, crc: int) -> None:
        """ChecksumError unless the chunk is as the manifest says."""
        chunk = self.chunks[index]
        path = self.model.paths[chunk.file]
        cell = (chunk.offset - self.starts[chunk.file]) // self.manifest.chunk_size
        expected = self.manifest.expected(path, cell)
        self.done = index + 1
        if crc == expected:
            return
        end = chunk.offset + chunk.length
        names = [
            t.name
            for t in self.model.all()
            if t.file == chunk.file and t.begin < end and t.end > chunk.offset
        ]
        listed = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
        raise ChecksumError(
            5,
            f"{path}: bytes {chunk.offset} to {end} (chunk {cell}) have checksum {crc:08x}, not "
            f"{expected:08x}: the file is damaged; tensors {listed}",
        )


class Recorder(Checker):
    """Makes a manifest instead."""

    def __init__(self, model: Model, plan: Plan, chunk_size: int) -> None:
        sizes = {os.path.basename(path): os.stat(path).st_size for path in model.paths}
        if len(sizes) < len(model.paths):
            raise ManifestError("two files have one name: make a manifest of each folder")
        super().__init__(model, plan, Manifest(chunk_size, {n: (s, []) for n, s in sizes.items()}))

    def check(self, index: int, crc: int) -> None:
        """Note it."""
        path = self.model.paths[self.chunks[index].file]
        self.manifest.files[os.path.basename(path)][1].append(crc)
        self.done = index + 1


def record(model: Model, settings: Settings, chunk_size: int) -> Manifest:
    """Read all files whole for the checksums of their chunks."""
    every = [replace(whole(tensor), hidden=True) for tensor in model.all()]
    plan = Plan(model, every, chunk_size, 1, 0)
    recorder = Recorder(model, plan, chunk_size)
    job = Job(plan, settings, checksum=True)
    try:
        job.start()
        for _ in _items(job, plan, recorder):
            pass
    finally:
        job.close()
    return recorder.manifest


def local(
    model: Model,
    wanted: Sequence[Wanted],
    targets: Targets,
    settings: Settings,
    chunk_size: int,
    manifest: Manifest | None,
    report: Report,
) -> Pass:
    """Read in this process.  Close the iterator to stop early."""
    plan = Plan(model, wanted, chunk_size, 1, 0)
    job = Job(plan, settings, checksum=manifest is not None)
    try:
        job.into(_destinations(plan, targets))
        checker = Checker(model, plan, manifest) if manifest else None
        begin = time.monotonic()
        job.start()
        yield from _items(job, plan, checker)
        report.seconds = time.monotonic() - begin
        fill_report(report, job, checker)
    finally:
        job.close()


def _destinations(plan: Plan, targets: Targets) -> bytes:
    """What can be read straight, as `Job.into` takes it; where more is read, it is copied out."""
    if targets.packed and isinstance(plan.items, Whole):
        return targets.packed
    rows = []
    for index, (number, length) in enumerate(plan.reads()):
        target = targets.tensors.get(number)
        if target is not None and target.nbytes == length:
            cuda = target.device.type == "cuda"
            rows.append(packed_target(index, cuda, target.data_ptr(), length))
    return b"".join(rows)


def _items(job: Job, plan: Plan, checker: Checker | None) -> Pass:
    release = job.library.cfac_buffer_release
    items = plan.items
    with closing(job.results()) as results:
        for index, flags, address, length, buffer in results:
            item = tensor = None
            if not flags & jobs.PLACED:
                item = items[index]
                if item.hidden:
                    release(buffer)
                else:
                    # From here on the reference belongs to the tensor, whatever is raised.
                    tensor = over(item, address, length, buffer, release)
            if checker is not None:
                first, count = plan.span(index)
                for chunk in range(max(first, checker.done), first + count):
                    checker.check(chunk, job.checksum(chunk))
            if item is None:
                yield length, None
            elif tensor is not None:
                yield item.length, (item, tensor)
            del tensor


def fill_report(report: Report, job: Job, checker: Checker | None) -> None:
    """What a job that came to its end tells."""
    plan = job.plan
    report.chunk_size = plan.chunk_size
    report.counters = job.counters()
    report.verified = checker.done if checker else 0
    for number, name in enumerate(jobs.BACKENDS):
        if reason := job.reason(number):
            report.refused[name] = reason
    chunks = plan.chunks()
    for index, chunk in enumerate(chunks):
        path = job.path(index)
        report.paths[path] += 1
        if job.settings.events:
            file = plan.paths[chunk.file]
            report.chunk_paths.append((file, chunk.offset, chunk.length, path))
    if job.settings.events:
        report.events = job.events()
