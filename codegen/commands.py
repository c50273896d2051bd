"""The commands ``check``, ``compile``, ``apply`` and ``unapply``."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cfac.compiler.api import check as check_spec
from cfac.compiler.api import load_together
from cfac.compiler.diagnostics import Diagnostic, Diagnostics, Span
from cfac.compiler.layouts.options import layout_options
from cfac.compiler.model import Spec
from cfac.compiler.render import FORMATS, Format, emit, summary

if TYPE_CHECKING:
    from cfac.codegen.compile import CompileResult

_DIFF_LINES = 12
_FORMAT = click.option(
    "--format",
    "fmt",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="How diagnostics are printed.",
)
_SPEC = click.Path(exists=True, dir_okay=False)
_PARTIAL = click.option(
    "--allow-partial",
    is_flag=True,
    help="Leave out what is there for speed only and has no place in this engine, and say so.",
)
_ENGINE = click.option(
    "--engine",
    type=click.Path(exists=True),
    help="The engine's tree: a checkout, a site-packages, or the package's folder.",
)


@click.command()
@click.argument("specs", nargs=-1, type=_SPEC, metavar="[SPEC]...")
@_ENGINE
@_PARTIAL
@layout_options
@_FORMAT
def check(
    specs: tuple[str, ...],
    engine: str | None,
    allow_partial: bool,
    model: str | None,
    chunk_size: str | None,
    fmt: Format,
) -> None:
    """Report everything that is wrong with SPEC; with --engine, its anchors too.

    With --model, the layout of a model's files is read and checked as well.
    """
    found: list[Diagnostic] = []
    sources: dict[str, str] = {}
    lines: list[str] = []
    for path in specs or (_find_spec(),):
        spec, diagnostics, order = _load(path, model=model, chunk_size=chunk_size)
        if spec is not None:
            sources.update(spec.sources)
            if not diagnostics.errors:
                lines.append(f"{path}: {' > '.join(order)}")
                lines += _layouts(spec)
                if engine is not None:
                    lines += _check_engine(path, spec, engine, diagnostics, allow_partial)
        found += diagnostics.sorted()
    failed = any(item.severity == "error" for item in found)
    if found or fmt == "json":
        emit(found, sources, fmt)
    if fmt == "text":
        if not failed:
            for line in lines:
                click.echo(line)
        if found:
            click.echo(summary(found), err=True)
    if failed:
        raise SystemExit(1)


def _layouts(spec: Spec) -> Iterator[str]:
    """A line for each model that was read."""
    if any(refined.chunks is not None for refined in spec.refined):
        from cfac.compiler.layouts.report import summary as summarize

        yield from summarize(spec)


def _check_engine(
    path: str, spec: Spec, engine: str, diagnostics: Diagnostics, allow_partial: bool
) -> Iterator[str]:
    from cfac.codegen.compile import compile_engine
    from cfac.codegen.engine import find_engine

    tree = find_engine(spec, engine, diagnostics)
    if tree is not None:
        applied = _read(Path("patches", f"{spec.name}.patch"))
        result = compile_engine(spec, tree, applied=applied, allow_partial=allow_partial)
        diagnostics.extend(result.diagnostics)
        if result.ok:
            yield (
                f"{path}: {result.bound} of {result.declared} transitions bound in "
                f"{tree.package} {tree.version}" + _left_out(result)
            )


@click.command("compile")
@click.argument("spec_paths", nargs=-1, type=_SPEC, metavar="[SPEC]...")
@_ENGINE
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    default="patches",
    show_default=True,
    help="The folder for the patch, plan, lock and report.",
)
@click.option(
    "--check",
    "check_only",
    is_flag=True,
    help="Write nothing; exit with 3 if the committed files differ from what SPEC gives.",
)
@click.option(
    "--update",
    is_flag=True,
    help="Write only if every anchor's function is as it was reviewed; else exit with 3.",
)
@click.option("--accept", is_flag=True, help="Renew the lock's fingerprints.")
@_PARTIAL
@layout_options
@click.option(
    "--backend",
    type=click.Choice(("patch", "hook")),
    default="patch",
    show_default=True,
    help="A diff of the engine's files, or a wheel that makes the edits at import.",
)
@_FORMAT
def compile_(
    spec_paths: tuple[str, ...],
    engine: str | None,
    output: str,
    check_only: bool,
    update: bool,
    accept: bool,
    allow_partial: bool,
    model: str | None,
    chunk_size: str | None,
    backend: str,
    fmt: Format,
) -> None:
    """Generate the patch (or hook), plan, lock and report of SPEC; of several, one of each.

    A SPEC with 'refine' and without an engine has no patch: its plan is what a loader
    reads. With --model, what the refinement does to that model is reported in a file of
    its own, NAME.layout.md.

    Inside a fork no argument is needed: SPEC is the one startup graph in the current
    folder that no other one there includes, and the engine is the enclosing checkout,
    else the installed package.
    """
    from cfac.codegen.compile import compile_engine
    from cfac.codegen.drift_commands import explain, tell
    from cfac.codegen.engine import find_engine

    spec, diagnostics, _ = _load(
        *(spec_paths or (_find_spec(),)), model=model, chunk_size=chunk_size
    )
    result = tree = drift = None
    folder = Path(output)
    if update and (check_only or accept):
        raise click.UsageError("--update excludes --check (writes nothing) and --accept")
    unbound = spec is not None and spec.engine is None and bool(spec.refined)
    if spec is not None and not diagnostics.errors and not unbound:
        tree = find_engine(spec, engine, diagnostics)
        lock = _read(folder / f"{spec.name}.lock")
        text = None if lock is None else lock.decode("utf-8", "replace")
        patch = folder / f"{spec.name}.patch"
        drift = explain(spec, engine, text, _read(patch))
        if tree is not None:
            result = compile_engine(
                spec,
                tree,
                lock=text,
                accept=accept,
                applied=_read(patch),
                allow_partial=allow_partial,
            )
            diagnostics.extend(result.diagnostics)
            if result.replaces and not check_only:
                diagnostics.error(
                    "CF411",
                    f"{patch} is applied to {tree.root}, and the spec gives another patch now",
                    spec.engine.span if spec.engine else spec.span,
                    help=f"first: cfac unapply {patch}",
                )
    found = diagnostics.sorted()
    if found or fmt == "json":
        emit(found, spec.sources if spec else {}, fmt)
    if fmt == "text" and found:
        click.echo(summary(found), err=True)
    if fmt == "text" and drift is not None:
        tell(drift, moves=check_only or update)
    if spec is None or diagnostics.errors or (result is None and not unbound):
        raise SystemExit(1)
    stale: list[Path] = []
    main = f"{spec.name}.patch"
    if result is None:
        main, produced = f"{spec.name}.plan.json", _plan_only(spec)
    else:
        produced = result.outputs(spec.name)
    if result is not None and backend == "hook":
        from cfac.codegen.hook import hook_of, older

        assert tree is not None
        del produced[main]
        main, produced[main] = hook_of(spec, result, tree)
        stale = older(folder, spec.name, main)
    outputs = {folder / name: data for name, data in produced.items()}
    if check_only:
        _compare(outputs, stale)
        return
    if update and drift is not None and not drift.fine:
        click.echo(
            "nothing was written: look at the functions above, then run cfac compile --accept",
            err=True,
        )
        raise SystemExit(3)
    if model is not None:
        from cfac.compiler.layouts.report import render as layout_report

        outputs[folder / f"{spec.name}.layout.md"] = layout_report(spec).encode()
    for path, data in outputs.items():
        _write(path, data)
    for path in stale:
        path.unlink()
    if fmt != "text":
        return
    for line in _layouts(spec):
        click.echo(line)
    if result is None:
        click.echo(f"{folder / main}: no engine to patch")
    else:
        click.echo(
            f"{folder / main}: {result.bound} of {result.declared} transitions bound, "
            f"{len(result.files)} files" + _left_out(result)
        )


def _left_out(result: CompileResult) -> str:
    return f", {len(result.losses)} left out" if result.losses else ""


def _plan_only(spec: Spec) -> dict[str, bytes]:
    """The files of a spec that names no engine: its plan."""
    from cfac.compiler.plan import compile_plan, render_plan

    return {f"{spec.name}.plan.json": render_plan(compile_plan(spec)).encode()}


def _compare(outputs: dict[Path, bytes], older: list[Path]) -> None:
    stale = {path: _read(path) for path, data in outputs.items() if _read(path) != data}
    for path in older:
        click.echo(f"{path}: out of date", err=True)
    for path, old in stale.items():
        click.echo(f"{path}: {'missing' if old is None else 'out of date'}", err=True)
        if old is None or path.suffix == ".whl":
            continue
        lines = difflib.unified_diff(
            old.decode("utf-8", "replace").splitlines(),
            outputs[path].decode("utf-8", "replace").splitlines(),
            "committed",
            "generated",
            lineterm="",
            n=1,
        )
        shown = list(lines)
        for line in shown[:_DIFF_LINES]:
            click.echo(f"  {line}", err=True)
        if len(shown) > _DIFF_LINES:
            click.echo(f"  ... {len(shown) - _DIFF_LINES} more lines", err=True)
    if stale or older:
        click.echo("run cfac compile and commit what it writes", err=True)
        raise SystemExit(3)


@click.command()
@click.argument("patch", type=_SPEC)
@_ENGINE
def apply(patch: str, engine: str | None) -> None:
    """Apply PATCH to an engine's tree; a second time is a no-op."""
    _apply(patch, engine, reverse=False)


@click.command()
@click.argument("patch", type=_SPEC)
@_ENGINE
def unapply(patch: str, engine: str | None) -> None:
    """Take PATCH out of an engine's tree: every byte as before."""
    _apply(patch, engine, reverse=True)


def _apply(path: str, engine: str | None, *, reverse: bool) -> None:
    from cfac.codegen import apply as applying
    from cfac.codegen.engine import locate

    data = Path(path).read_bytes()
    diagnostics = Diagnostics()
    span = Span(path, 1, 1, 2)
    try:
        patch = applying.parse_patch(data)
        root = locate(patch.package, engine, [Path.cwd(), Path(path).absolute().parent])
        if root is None:
            where = engine or "any enclosing folder, and it is not installed"
            diagnostics.error(
                "CF401",
                f"no package {patch.package!r} in {where}",
                span,
                help="name the engine's tree with --engine PATH",
            )
        else:
            run = applying.unapply if reverse else applying.apply
            outcome = run(data, root[0])
            state = "taken out of" if reverse else "applied to"
            count = len(outcome.changed)
            click.echo(
                f"{patch.name}: {state} {root[0]} ({count} files changed)"
                if count
                else f"{patch.name}: nothing to do in {root[0]}"
            )
    except applying.PatchError as error:
        diagnostics.error(error.code, str(error), span, help=error.help)
    except OSError as error:
        raise click.ClickException(str(error)) from error
    if diagnostics.errors:
        emit(diagnostics, {path: ""})
        raise SystemExit(1)


def _load(
    *paths: str, model: str | None = None, chunk_size: str | None = None
) -> tuple[Spec | None, Diagnostics, list[str]]:
    """Specs as one with all that load and check say about it, and the witness order."""
    spec, loaded = load_together(paths, model=model, chunk_size=chunk_size)
    diagnostics = Diagnostics(list(loaded))
    order: list[str] = []
    if spec is not None:
        checked: Any = check_spec(spec)
        diagnostics.extend(checked.diagnostics)
        order = [str(name) for name in checked.order or ()]
    return spec, diagnostics, order


def _find_spec() -> str:
    """The one startup graph in the current folder that no other one there includes."""
    from cfac.compiler.load import included

    here = Path()
    found = [
        str(path)
        for path in sorted([*here.glob("*.yaml"), *here.glob("*.yml")])
        if "kind: StartupGraph" in path.read_text("utf-8", errors="replace")
    ]
    if len(found) > 1:
        bases = set().union(*(included(path) for path in found))
        found = [path for path in found if Path(path).resolve() not in bases] or found
    if len(found) != 1:
        names = f": {', '.join(found)}" if found else ""
        count = "several startup graphs" if found else "no startup graph"
        raise click.UsageError(f"{count} in the current folder{names}; name the SPEC")
    return found[0]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _write(path: Path, data: bytes) -> None:
    if _read(path) == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.cfac-tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)  # noqa: PTH105
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
