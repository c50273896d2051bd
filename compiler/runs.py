"""Whose run a component's states belong to (DESIGN sections 3 and 7).

A run has an owner, a table of states and a trace of its own.  Specs that are compiled
together may speak of different ones; each spec says of which, for all its components:

- ``own``: the run that the engine begins, at the first state of its root;
- ``joined`` (``channel: {run: joined}``): another program makes the run and names it to the
  engine, whose processes join it: a switch, made by the gateway;
- ``local``: a spec with neither ``engine`` nor ``bind``, beside one with an engine.  It says
  what a library does by itself (the tensors of a loader); nothing in the engine is bound.

Nobody can wait for a state of another run: no owner holds both (CF229).
"""

from __future__ import annotations

from collections.abc import Sequence

from cfac.compiler.compose import Document, is_local
from cfac.compiler.diagnostics import Diagnostics, Note
from cfac.compiler.model import RunKind, Spec
from cfac.compiler.yamlpos import MapNode, ScalarNode


def runs(documents: Sequence[Document], spec: Spec) -> dict[str, RunKind]:
    """component -> the kind of its run, where it is not ``own``.

    Of a component that several specs declare, the engine's own run goes first.  One that
    none declares is derived from those of a library (``refine``).
    """
    kinds: dict[str, set[RunKind]] = {}
    for document in documents:
        kind: RunKind = "joined" if joins(document.root) else "own"
        kind = "local" if is_local(document, documents) else kind
        components = document.root.get("components")
        for key, _ in components.entries if isinstance(components, MapNode) else ():
            kinds.setdefault(key.text, set()).add(kind)
    derived: RunKind = "local" if any("local" in k for k in kinds.values()) else "own"
    found: dict[str, RunKind] = {}
    for name in spec.components:
        said = kinds.get(name, {derived})
        if "own" not in said:
            found[name] = "joined" if "joined" in said else "local"
    return found


def joins(root: MapNode) -> bool:
    """Whether a document says that its run is another program's."""
    channel = root.get("channel")
    run = channel.get("run") if isinstance(channel, MapNode) else None
    return isinstance(run, ScalarNode) and run.text == "joined"


def check_runs(spec: Spec, diagnostics: Diagnostics) -> None:
    """CF229 for each wait, and each spawn, from one run into another."""
    for component in spec.components.values():
        kind = spec.run_of(component.name)
        others = [
            (str(w.ref), w.ref.component, w.ref.span) for s in component.states for w in s.after
        ]
        process = component.process
        if process is not None and process.spawned_by:
            others.append((process.spawned_by, process.spawned_by, process.span))
        for text, name, span in others:
            other = spec.components.get(name)
            if other is not None and spec.run_of(name) != kind:
                diagnostics.error(
                    "CF229",
                    f"{component.name} and {text} belong to different runs",
                    span,
                    notes=[Note(f"{name} is declared here", other.span)],
                    help="a run has its own owner and table: publish both in one of them",
                )
