"""``cfac load``: load safetensors files as an engine would, and say how fast and which way."""

from __future__ import annotations

import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cfac.runtime.loading import Loader, Report

_BACKENDS = ("auto", "io_uring", "libaio", "pread", "buffered")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option("--device", default="cpu", show_default=True, help="Where tensors go.")
@click.option("--names", metavar="GLOB", help="Only tensors whose name matches.")
@click.option("--backend", type=click.Choice(_BACKENDS), default="auto", show_default=True)
@click.option("--chunk-size", default="auto", show_default=True, metavar="BYTES|auto")
@click.option("--ring", type=int, default=0, help="Chunk buffers at most; 0: chosen.")
@click.option("--views", is_flag=True, help="Tensors may be views of chunk buffers.")
@click.option("--into", is_flag=True, help="Read into tensors made before the clock runs.")
@click.option("--verify", metavar="FILE", type=click.Path(), help="Compare with a manifest.")
@click.option("--manifest", metavar="FILE", type=click.Path(), help="Only write a manifest.")
@click.option("--progress/--no-progress", default=None, help="Default: on a terminal.")
def load(paths: tuple[str, ...], manifest: str | None, into: bool, **options: Any) -> None:
    """Load safetensors files, drop the tensors, print bytes and GB/s per stage and read paths.

    PATH is a file, a folder, or an index.  Exit code 1, with one line that names file and tensor,
    if a file is refused or cannot be read.
    """
    from cfac.runtime.loading import NativeMissingError

    try:
        model = _open(paths, options)
        if manifest is not None:
            _write_manifest(model, manifest)
            return
        report = _load(model, into)
    except (OSError, ValueError, KeyError, MemoryError, NativeMissingError) as error:
        said = error.args[0] if isinstance(error, KeyError) else error
        raise click.ClickException(str(said)) from error
    except KeyboardInterrupt:
        sys.exit(130)
    _print(model, report)


def _open(paths: tuple[str, ...], options: dict[str, Any]) -> Loader:
    from cfac.runtime.loading import load as open_files

    size = options.pop("chunk_size")
    if size != "auto" and not size.isdigit():
        raise click.BadParameter(f"{size!r} is neither a number nor auto", param_hint="chunk-size")
    size = size if size == "auto" else int(size)
    verify = options.pop("verify")
    return open_files(paths, chunk_size=size, checksums=verify, trace=True, **options)


def _load(model: Loader, into: bool) -> Report:
    if into:
        return model.load_into(model.allocate())
    for _ in model:
        pass
    return model.report


def _write_manifest(model: Loader, path: str) -> None:
    made = model.manifest()
    made.write(path)
    chunks = sum(len(crcs) for _, crcs in made.files.values())
    click.echo(f"{path}: {chunks} chunks of {made.chunk_size} bytes in {len(made.files)} files")


def _print(model: Loader, report: Report) -> None:
    counters = report.counters
    rate = f"{report.rate / 1e9:.2f} GB/s"
    click.echo(
        f"{report.tensors} tensors, {report.bytes / 1e9:.3f} GB from {len(model.metadata)} files "
        f"in {report.seconds:.3f} s: {rate}"
    )
    for stage, seconds in report.stages().items():
        moved = counters["bytes"] if stage == "read" else counters["copied_bytes"]
        if moved:
            speed = f"{moved / seconds / 1e9:8.2f} GB/s" if seconds else ""
            click.echo(f"  {stage:<6}{moved / 1e9:8.3f} GB in {seconds:7.3f} s {speed}")
    click.echo(
        f"{len(report.chunk_paths)} chunks of {report.chunk_size} bytes, {counters['requests']} "
        f"reads, ring of {counters['ring']}, {counters['threads']} threads"
    )
    _print_paths(report)
    for backend, reason in report.refused.items():
        click.echo(f"  {backend} is not used: {reason}")
    if report.verified:
        click.echo(f"{report.verified} checksums agree")


def _print_paths(report: Report) -> None:
    """Each file's chunks by the way they were read, neighbours together."""
    numbers: dict[str, int] = {}
    for (file, path), group in groupby(report.chunk_paths, itemgetter(0, 3)):
        first = numbers.get(file, 0)
        size = sum(1 for _ in group)
        numbers[file] = first + size
        span = f"{first}" if size == 1 else f"{first}-{first + size - 1}"
        click.echo(f"  {Path(file).name}: {span}: {path}")
