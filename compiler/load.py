"""Files to a frozen spec: read, check the shape, lay over, build, resolve names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cfac.compiler.build import build_spec
from cfac.compiler.calm import calm
from cfac.compiler.compose import Document, compose
from cfac.compiler.diagnostics import Diagnostics, Note, Span
from cfac.compiler.model import Spec
from cfac.compiler.names import resolve
from cfac.compiler.overlay import overlay
from cfac.compiler.recorded import fill_in
from cfac.compiler.runs import check_runs, runs
from cfac.compiler.shape import check_shape
from cfac.compiler.yamlpos import ListNode, MapNode, Node, ScalarNode, parse, read_text


@dataclass(slots=True)
class _Loader:
    """The files of one spec; each is read and merged once."""

    diagnostics: Diagnostics
    sources: dict[str, str] = field(default_factory=dict)
    done: set[Path] = field(default_factory=set)
    stack: list[tuple[Path, str, Span | None]] = field(default_factory=list)

    def tree(self, file: str, at: Span | None) -> MapNode | None:
        """The document in ``file`` laid over all that it includes."""
        path = Path(file)
        try:
            real = path.resolve()
        except (OSError, RuntimeError, ValueError):
            real = path
        names = [known for known, _, _ in self.stack]
        if real in names:
            self._cycle(names.index(real), file, at)
            return None
        if real in self.done:
            return None
        self.done.add(real)
        text = read_text(path, file, self.diagnostics, at)
        if text is None:
            return None
        self.sources[file] = text
        root = parse(text, file, self.diagnostics)
        if root is None:
            return None
        check_shape(root, self.diagnostics)
        self.stack.append((real, file, at))
        base: MapNode | None = None
        for include in _includes(root.get("include")):
            target = os.path.normpath(os.path.join(os.path.dirname(file), include.text))  # noqa: PTH118, PTH120
            below = self.tree(target, include.span)
            if below is not None:
                base = below if base is None else overlay(base, below, self.diagnostics)
        self.stack.pop()
        return root if base is None else overlay(base, root, self.diagnostics)

    def _cycle(self, start: int, file: str, at: Span | None) -> None:
        notes = [
            Note(f"{name!r} is included here", where) for _, name, where in self.stack[start + 1 :]
        ]
        self.diagnostics.error("CF113", f"{file!r} includes itself", at, notes=notes)


def _includes(node: Node | None) -> list[ScalarNode]:
    if isinstance(node, ScalarNode):
        node = ListNode((node,), node.span)
    if not isinstance(node, ListNode):
        return []
    return [n for n in node.items if isinstance(n, ScalarNode) and isinstance(n.value, str)]


def included(path: str | Path) -> set[Path]:
    """The files that a spec includes, also by way of others, resolved; without itself."""
    loader = _Loader(Diagnostics())
    loader.tree(str(path), None)
    return loader.done - {Path(path).resolve()}


def load(
    path: str | Path,
    *,
    recordings: bool = True,
    model: str | None = None,
    chunk_size: str | None = None,
) -> tuple[Spec | None, Diagnostics]:
    """Load a spec with all it includes; names are resolved.

    The spec is None where nothing could be modelled.  It may be given beside
    errors: what they are about is then left out of it, so that later passes can
    still look for further errors.  Without ``recordings`` what is ``recorded`` is left
    open: to make a recording, none has to be there.  ``model`` and ``chunk_size`` take the
    place of what the spec's refinements say (docs/tensors.md).
    """
    return load_together([path], recordings=recordings, model=model, chunk_size=chunk_size)


def load_together(
    paths: Sequence[str | Path],
    *,
    recordings: bool = True,
    model: str | None = None,
    chunk_size: str | None = None,
) -> tuple[Spec | None, Diagnostics]:
    """Load one or several specs as one: see :mod:`cfac.compiler.compose`."""
    with calm():
        return _load(paths, recordings, model, chunk_size)


def _load(
    paths: Sequence[str | Path], recordings: bool, model: str | None, chunk_size: str | None
) -> tuple[Spec | None, Diagnostics]:
    diagnostics = Diagnostics()
    documents: list[Document] = []
    sources: dict[str, str] = {}
    for path in dict.fromkeys(str(path) for path in paths):
        loader = _Loader(diagnostics)
        root = loader.tree(path, None)
        sources.update(loader.sources)
        if root is not None:
            documents.append(Document(root, frozenset(loader.sources)))
    if len(documents) < len(set(map(str, paths))):
        return None, diagnostics
    root = compose(documents, diagnostics)
    spec = build_spec(root, str(paths[0]), diagnostics)
    if spec is None:
        return None, diagnostics
    if recordings:
        spec = fill_in(spec, sources, diagnostics)
    if spec.refines:
        from cfac.compiler.layouts.derive import derive

        derived = derive(spec, model, chunk_size, diagnostics)
        if derived is None:
            return None, diagnostics
        spec = derived
    elif model is not None:
        message = f"{spec.name} has no 'refine': there is nothing to read a model's layout for"
        diagnostics.error("CF624", message, spec.span)
    spec = replace(spec, sources=sources, runs=runs(documents, spec))
    spec = resolve(spec, root, diagnostics)
    check_runs(spec, diagnostics)
    return spec, diagnostics
