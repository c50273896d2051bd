"""The compiler's passes as functions: load a spec, check it, compile its plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cfac.compiler.check import CheckResult
    from cfac.compiler.diagnostics import Diagnostics
    from cfac.compiler.model import Spec


def load(
    path: str | Path, *, model: str | None = None, chunk_size: str | None = None
) -> tuple[Spec | None, Diagnostics]:
    """Load a spec and all it includes; names are resolved, refinements derived.

    ``model`` is a file, folder or index whose layout is read, ``chunk_size`` a size in
    bytes, one such as ``8MiB``, or ``auto``; both take the place of what the spec says.

    The spec is None where nothing could be modelled.  It may also be given beside
    errors, without what they are about, so that ``check`` finds the rest; only a
    spec without errors may be compiled.
    """
    from cfac.compiler.load import load as load_spec

    return load_spec(path, model=model, chunk_size=chunk_size)


def load_together(
    paths: Sequence[str | Path], *, model: str | None = None, chunk_size: str | None = None
) -> tuple[Spec | None, Diagnostics]:
    """Load several specs as one; a contradiction is an error at both places."""
    from cfac.compiler.load import load_together as load_specs

    return load_specs(paths, model=model, chunk_size=chunk_size)


def check(spec: Spec) -> CheckResult:
    """Every check on a loaded spec: termination, the chain, merging."""
    from cfac.compiler.check import check as check_spec

    return check_spec(spec)


def compile_plan(spec: Spec) -> dict[str, Any]:
    """The plan of a spec without errors: JSON-ready and deterministic."""
    from cfac.compiler.plan import compile_plan as compile_spec

    return compile_spec(spec)
