"""``cfac cache``: keep checkpoints in memory, where every loader on the machine finds them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cfac.runtime.loading.cache import Entry

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Size(click.ParamType[int]):
    """``8GB``, ``500MiB``, ``1000``: bytes."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Bytes of a size."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmgt]?)(i?)b?", str(value).strip().lower())
        if match is None or (match[3] and not match[2]):
            self.fail(f"{value!r} is no size, such as 8GB or 500MiB", param, ctx)
        units = _BINARY if match[3] else _UNITS
        return int(float(match[1]) * units[match[2]])


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    from cfac.runtime.loading import NativeMissingError

    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror or error}") from error
    except (ValueError, MemoryError, NativeMissingError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(130)


@click.group()
def cache() -> None:
    """Keep checkpoints in memory (tmpfs), where every loader finds them.

    The folder is $CFAC_CACHE, else one in /dev/shm.  What is in it stays until it is evicted or
    the machine restarts.
    """


@cache.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", type=click.Path())
@click.option(
    "--budget",
    type=Size(),
    envvar="CFAC_CACHE_BUDGET",
    help="Bytes of all entries at most, such as 8GB; default: half of the free memory.",
)
def add(models: tuple[str, ...], budget: int | None) -> None:
    """Copy MODEL (a file, a folder, an index) into memory.

    Exit code 1, with one line, if it does not fit; then nothing is kept of it.
    """
    from cfac.runtime.loading import cache as kept

    for model in models:
        with _one_line():
            limit = kept.default_budget() if budget is None else budget
            entry, copied = kept.add(model, limit, progress=_progress())
        what = "added" if copied else "is there already"
        click.echo(f"{entry.key}  {_gb(entry.bytes)}  {entry.model}  {what}")


@cache.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(as_json: bool) -> None:
    """List what is in memory: key, size, model, and whether loaders use it.

    A stale entry is one whose files have changed since; no loader takes it.
    """
    from cfac.runtime.loading import cache as kept

    root = kept.default_root()
    with _one_line():
        kept.sweep(root)
        found = kept.entries(root)
    if as_json:
        rows = [
            {"key": e.key, "model": e.model, "bytes": e.bytes, "state": _state(e), "files": e.paths}
            for e in found
        ]
        click.echo(json.dumps({"folder": root, "entries": rows}, indent=1))
        return
    for entry in found:
        click.echo(f"{entry.key}  {_gb(entry.bytes)}  {entry.model}  {_state(entry)}")
    total = sum(entry.bytes for entry in found)
    with _one_line():
        left = kept.memory_left()
    click.echo(f"{len(found)} entries, {_gb(total)} in {root}; {_gb(left)} of memory are free")


@cache.command()
@click.argument("models", nargs=-1, metavar="MODEL...", type=click.Path())
@click.option("--all", "everything", is_flag=True, help="All entries.")
def evict(models: tuple[str, ...], everything: bool) -> None:
    """Remove MODEL, named as it was added or by its key.

    One that is in use goes when its last loader closes; no new loader takes it.
    """
    from cfac.runtime.loading import cache as kept

    if bool(models) == everything:
        raise click.UsageError("name entries, or give --all")
    root = kept.default_root()
    with _one_line():
        kept.sweep(root)
        found = kept.entries(root)
        chosen = found if everything else [e for m in models for e in _named(m, found)]
        for entry in chosen:
            gone = kept.evict(entry)
            what = "evicted" if gone else "is in use: evicted when its last loader closes"
            click.echo(f"{entry.key}  {_gb(entry.bytes)}  {entry.model}  {what}")


def _named(name: str, found: list[Entry]) -> list[Entry]:
    path = os.path.realpath(name)
    chosen = [e for e in found if e.key == name or path in (os.path.realpath(e.model), *e.sources)]
    if not chosen:
        raise click.ClickException(f"{name} is not in the cache: see cfac cache list")
    return chosen


def _state(entry: Entry) -> str:
    return "evicted, in use" if entry.doomed else "ready" if entry.fresh() else "stale"


def _gb(size: int) -> str:
    return f"{size / 1e9:.3f} GB"


def _progress() -> Callable[[int, int], None] | None:
    """A line on a terminal, or nothing."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        click.echo(f"\rcopied {_gb(done)} of {_gb(total)}{end}", nl=False, err=True)

    return show
