"""The command ``diff``, and what ``compile`` says when the engine changed under a patch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cfac.codegen.anchors import Tree
from cfac.codegen.apply import originals
from cfac.codegen.drift import Comparison, compare, reviewed
from cfac.codegen.drift_text import render_drift
from cfac.codegen.engine import Engine, find_engine
from cfac.codegen.lock import read_lock
from cfac.codegen.sites import applicable
from cfac.codegen.survey import Survey, survey
from cfac.compiler.api import load
from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.model import Spec
from cfac.compiler.render import emit
from cfac.compiler.spec_diff import diff_specs, render


def explain(
    spec: Spec, engine: str | None, lock: str | None, applied: bytes | None
) -> Comparison | None:
    """What became of each anchor since the lock was written; None without a lock or a tree.

    The versions that the spec names do not matter here: a new one is just what is asked about.
    """
    if lock is None:
        return None
    tree = find_engine(spec, engine, Diagnostics(), any_version=True)
    if tree is None:
        return None
    new, files = _survey(spec, tree, applied)
    return compare(reviewed(read_lock(lock), tree.package), new, files)


def tell(found: Comparison, *, moves: bool) -> None:
    """Print to stderr what is to be reviewed; with ``moves``, also what only moved."""
    changed = not found.fine or found.count("added") or found.count("removed")
    if changed or (moves and found.count("same") < len(found.anchors)):
        click.echo(render_drift(found, all_anchors=False), err=True, nl=False)


def _survey(spec: Spec, engine: Engine, applied: bytes | None = None) -> tuple[Survey, Tree]:
    before = None if applied is None else originals(applied, engine.root)
    tree = Tree(engine.root, engine.package, before or {})
    bounds = applicable(spec, engine.version, Diagnostics())
    return survey(tree, engine.version, bounds, spec.defers), tree


@click.command()
@click.argument("old", type=click.Path(exists=True))
@click.argument("new", type=click.Path(exists=True))
@click.option(
    "--spec",
    "spec_path",
    type=click.Path(exists=True, dir_okay=False),
    help="The spec whose anchors are compared; default: the one in the current folder.",
)
@click.option("--format", "fmt", type=click.Choice(["text", "json"]), default="text")
@click.option("--exit-code", is_flag=True, help="Exit with 3 if there is a difference.")
def diff(old: str, new: str, spec_path: str | None, fmt: str, exit_code: bool) -> None:
    """Compare two specs, or where the anchors of a spec are in two engine trees.

    OLD and NEW are two spec files, or two engine trees; OLD may be a lock file instead of
    a tree.  The versions that the spec names are not asked for.
    """
    kinds = [_kind(old), _kind(new)]
    if kinds == ["spec", "spec"]:
        found = _specs(old, new)
        text = render(found) or "no difference\n"
        data: dict[str, Any] = {"differences": [entry.as_json() for entry in found]}
        differs = bool(found)
    elif kinds[1] == "tree" and kinds[0] in ("tree", "lock"):
        comparison = _trees(old, new, kinds[0], spec_path)
        text, data = render_drift(comparison), comparison.as_json()
        differs = comparison.count("same") < len(comparison.anchors)
    else:
        raise click.UsageError(
            f"cannot compare a {kinds[0]} with a {kinds[1]}: two specs (.yaml), two engine "
            "trees (folders), or a lock and a tree"
        )
    click.echo(json.dumps(data, indent=1, ensure_ascii=False) if fmt == "json" else text, nl=False)
    if fmt == "json":
        click.echo()
    if differs and exit_code:
        raise SystemExit(3)


def _kind(path: str) -> str:
    if Path(path).is_dir():
        return "tree"
    return "lock" if path.endswith(".lock") else "spec"


def _specs(old: str, new: str) -> Any:
    return diff_specs(_load(old), _load(new))


def _load(path: str) -> Spec:
    spec, diagnostics = load(path)
    if spec is None or diagnostics.errors:
        emit(diagnostics.sorted(), spec.sources if spec else {}, "text")
        raise SystemExit(1)
    return spec


def _trees(old: str, new: str, kind: str, spec_path: str | None) -> Comparison:
    from cfac.codegen.commands import _find_spec

    spec = _load(spec_path or _find_spec())
    diagnostics = Diagnostics()
    tree = find_engine(spec, new, diagnostics, any_version=True)
    other = find_engine(spec, old, diagnostics, any_version=True) if kind == "tree" else None
    if tree is None or (other is None and kind == "tree"):
        emit(diagnostics.sorted(), spec.sources, "text")
        raise SystemExit(1)
    if other is None:
        lock = read_lock(Path(old).read_text("utf-8", errors="replace"))
        if not lock.functions:
            raise click.ClickException(f"{old} is no lock file of cfac compile")
        before = reviewed(lock, tree.package)
    else:
        before, _ = _survey(spec, other)
    now, files = _survey(spec, tree)
    return compare(before, now, files)
