"""What an anchor that does not match may have meant: nearest names with file and line.

Only used to explain an error, so the whole package may be searched: first by text,
then the few promising files by their syntax tree.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cfac.codegen.places import Def, definitions, dotted, imported, module_name, targets, walk_scope
from cfac.codegen.source import Source, SourceError, from_bytes

_DEF = re.compile(rb"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.M)
_PARSED = 16  # at most so many files are parsed for one error
_SPREAD = 0.45  # candidates that score this much worse than the best are not shown


def show(source: Source, node: ast.AST) -> str:
    """``vllm/a.py:12: text of the line``."""
    line = getattr(node, "lineno", 1)
    text = source.line(line).strip() if source.lines else ""
    return f"{source.path}:{line}: {text[:100]}"


def nearest_nodes(source: Source, scope: ast.AST, target: str, names: Sequence[str]) -> list[str]:
    """Calls, imports or assignments of a scope whose names resemble the wanted ones."""
    found: dict[str, ast.AST] = {}
    for node in sorted(walk_scope(scope), key=lambda n: getattr(n, "lineno", 0)):
        for name in _names(node, target, source):
            found.setdefault(name, node)
    wanted = [name.rpartition(".")[2] for name in names]
    scored = sorted(
        (
            (-max(_ratio(name.rpartition(".")[2], want) for want in wanted), k, name)
            for k, name in enumerate(found)
        ),
    )
    near = [name for score, _, name in scored if score <= -0.6][:3]
    if not near and len(found) <= 6:
        near = [name for _, _, name in scored]
    return [f"{show(source, found[name])}  [{target} {name}]" for name in near]


def _names(node: ast.AST, target: str, source: Source) -> Iterator[str]:
    if target == "call":
        if isinstance(node, ast.Call):
            yield ".".join(dotted(node.func))
    elif target == "import":
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = source.path.endswith("/__init__.py")
            for parts in imported(node, module_name(source.path), package):
                yield ".".join(parts)
    else:
        for bound in targets(node):
            yield ".".join(dotted(bound))


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


class Index:
    """A package's files and the names they define, read once and only when asked."""

    def __init__(self, root: Path, package: str) -> None:
        self.root = root
        self.raw: dict[str, bytes] = {}
        for path in sorted((root / package).rglob("*.py")):
            with contextlib.suppress(OSError):
                self.raw[path.relative_to(root).as_posix()] = path.read_bytes()
        self.names = {
            path: {name.decode("utf-8", "replace") for name in _DEF.findall(raw)}
            for path, raw in self.raw.items()
        }
        self.known = sorted(set().union(*self.names.values()))
        self._sources: dict[str, Source | None] = {}

    def calling(self, names: Iterable[str]) -> set[str]:
        """The files that seem to contain a call of one of ``names``."""
        lasts = sorted({re.escape(name.rpartition(".")[2]) for name in names if name})
        if not lasts:
            return set()
        call = re.compile(rf"\b(?:{'|'.join(lasts)})\s*\(".encode())
        return {path for path, raw in self.raw.items() if call.search(raw)}

    def parse(self, paths: Sequence[str]) -> Iterator[tuple[str, Source]]:
        """The first of these files, parsed; those that cannot be are left out."""
        for path in paths[:_PARSED]:
            if path not in self._sources:
                try:
                    self._sources[path] = from_bytes(self.raw[path], path)
                except SourceError:
                    self._sources[path] = None
            source = self._sources[path]
            if source is not None:
                yield path, source


def nearest_modules(index: Index, module: str) -> list[str]:
    """Modules of the package whose names resemble ``module``, nearest first."""
    known = [module_name(path) for path in index.raw]
    last = module.rpartition(".")[2]
    near = set(difflib.get_close_matches(module, known, n=4, cutoff=0.7))
    near.update(name for name in known if name.rpartition(".")[2] == last)
    return sorted(near, key=lambda name: (-_ratio(name, module), name))


def nearest_functions(index: Index, places: Sequence[str], names: Sequence[str]) -> list[str]:
    """Functions anywhere in the package that resemble the missing ones.

    By name, and by containing a call of one of ``names``.
    """
    places = [place for place in places if ":" in place] or list(places)
    wanted = [place.partition(":")[2].replace(".<locals>", "") or place for place in places]
    modules = {place.partition(":")[0] for place in places}
    lasts = {name.rpartition(".")[2] for name in wanted}
    close = set(lasts)
    for last in lasts:
        close.update(difflib.get_close_matches(last, index.known, n=4, cutoff=0.7))
    calling = index.calling(names)
    order = sorted(
        (path for path, defined in index.names.items() if path in calling or close & defined),
        key=lambda path: (
            module_name(path) not in modules,
            not lasts & index.names[path],
            path not in calling,
            -max(_ratio(module_name(path), module) for module in modules),
            path,
        ),
    )
    scored: list[tuple[float, str, int, str]] = []
    for path, source in index.parse(order):
        bonus = 0.3 if module_name(path) in modules else 0.0
        for qualname, node in definitions(source.tree):
            holds = _holds(node, names)
            score = max(_likeness(qualname, node.name, want) for want in wanted)
            if score >= 0.6 or holds:
                score += bonus + (0.4 if holds else 0.0)
                scored.append((-score, path, node.lineno, _describe(path, qualname, node, holds)))
    scored.sort()
    return [text for score, _, _, text in scored if score <= scored[0][0] + _SPREAD]


def _likeness(qualname: str, name: str, wanted: str) -> float:
    last = wanted.rpartition(".")[2]
    alone = 0.0 if last.startswith("__") else 0.9 * _ratio(name, last)
    return max(_ratio(qualname, wanted), alone)


def functions_with_call(index: Index, names: Sequence[str], near: str) -> list[str]:
    """Functions of the package that contain a call of one of ``names``, nearest file first."""
    order = sorted(index.calling(names), key=lambda path: (path != near, -_ratio(path, near), path))
    found: list[str] = []
    for path, source in index.parse(order):
        for qualname, node in definitions(source.tree):
            holds = _holds(node, names)
            if holds:
                found.append(_describe(path, qualname, node, holds))
        if len(found) >= 3:
            break
    return found[:3]


def _describe(path: str, qualname: str, node: Def, holds: str | None) -> str:
    text = f"{path}:{node.lineno}: {module_name(path)}:{qualname}"
    return f"{text}  [contains {holds}]" if holds else text


def _holds(node: Def, names: Sequence[str]) -> str | None:
    """The name of a wanted call made in the function itself (classes do not count)."""
    if isinstance(node, ast.ClassDef):
        return None
    lasts = {name.rpartition(".")[2] for name in names}
    for inner in walk_scope(node):
        if isinstance(inner, ast.Call):
            called = dotted(inner.func)
            if called[-1] in lasts:
                return f"{'.'.join(called)}, line {inner.lineno}"
    return None
