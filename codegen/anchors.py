"""Resolve a site of the spec to nodes of the engine's source.

An anchor names a function and something in it; it never names a line.  None or
several matches is an error that lists the nearest candidates.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cfac.codegen import candidates
from cfac.codegen.places import (
    DEFS,
    Def,
    dotted,
    ends_with,
    find_scopes,
    imported,
    module_file,
    module_name,
    targets,
    walk_scope,
)
from cfac.codegen.source import Source, SourceError, from_bytes, read_source
from cfac.compiler.diagnostics import Diagnostics, Note
from cfac.compiler.model import Defer, Site

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Match:
    """Where a site is: a scope, and the matched nodes (none for ``entry`` and ``exit``)."""

    source: Source
    place: str
    scope: ast.Module | Def
    nodes: tuple[ast.AST, ...]


@dataclass(frozen=True, slots=True)
class Deferral:
    """One place.  ``callee`` is the expression to wrap; None where it is ``left``, and why."""

    entry: Defer
    source: Source
    place: str
    line: int
    callee: ast.expr | None
    left: str = ""
    #: the function that a deferred call runs, where its module defines it
    runs: ast.FunctionDef | None = None

    @property
    def options(self) -> str:
        """The further arguments of the wrapping call."""
        return f'until="{self.entry.until}"' if self.entry.until else ""


@dataclass(slots=True)
class Tree:
    """An engine tree whose files are read at most once."""

    root: Path
    package: str
    unpatched: dict[str, bytes] = field(default_factory=dict)  # in place of what is on disk
    sources: dict[str, Source] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    #: what was found of an entry of ``defer``, and what there is to say about it
    deferrals: dict[Defer, tuple[Sequence[Deferral], Diagnostics]] = field(default_factory=dict)
    _index: candidates.Index | None = None
    _writing: dict[tuple[Path, re.Pattern[bytes]], list[str]] = field(default_factory=dict)

    def index(self) -> candidates.Index:
        """The whole package, to explain an error with."""
        if self._index is None:
            self._index = candidates.Index(self.root, self.package)
        return self._index

    def writing(self, folder: Path, pattern: re.Pattern[bytes]) -> list[str]:
        """The Python files under a folder in whose bytes ``pattern`` is found, by name."""
        key = (folder, pattern)
        if key not in self._writing:
            files = [file.relative_to(self.root).as_posix() for file in folder.rglob("*.py")]
            self._writing[key] = [
                path
                for path in sorted(files)
                if pattern.search(self.unpatched.get(path) or (self.root / path).read_bytes())
            ]
        return self._writing[key]

    def read(self, path: str) -> Source | None:
        """The source at ``path``; None (and a note in ``broken``) if it cannot be read."""
        if path not in self.sources and path not in self.broken:
            try:
                data = self.unpatched.get(path)
                self.sources[path] = (
                    read_source(self.root, path) if data is None else from_bytes(data, path)
                )
            except SourceError as error:
                self.broken[path] = str(error)
        return self.sources.get(path)


def resolve(site: Site, tree: Tree, label: str, diagnostics: Diagnostics) -> Match | None:
    """The one place that a site means, or None with an error.  ``label`` says whose it is."""
    scopes: list[Match] = []
    missing: list[str] = []
    for place in site.places:
        module, _, qualname = place.partition(":")
        found = _scopes(site, tree, place, module, qualname, diagnostics)
        if found is None:
            return None
        if not found:
            missing.append(place)
        scopes += found
    if not scopes:
        _report_missing(site, tree, missing, label, diagnostics)
        return None
    if site.target is None:
        if len(scopes) > 1:
            _report_several_scopes(site, scopes, label, diagnostics)
            return None
        return scopes[0]
    matches = [Match(s.source, s.place, s.scope, _matches(site, s)) for s in scopes]
    hits = [match for match in matches if match.nodes]
    if len(hits) > 1 and len({match.place for match in hits}) > 1:
        _report_several_scopes(site, hits, label, diagnostics)
        return None
    if not hits:
        _report_no_match(site, tree, matches, label, diagnostics)
        return None
    nodes = [(match, node) for match in hits for node in match.nodes]
    if site.nth is not None:
        if not 1 <= site.nth <= len(nodes):
            diagnostics.error(
                "CF405",
                f"{label}: nth: {site.nth}, but {_what(site)} matches {len(nodes)} "
                f"place(s) in {hits[0].place}",
                site.span,
                notes=_listed(nodes),
            )
            return None
        nodes = [nodes[site.nth - 1]]
    if len(nodes) != site.expect:
        diagnostics.error(
            "CF406",
            f"{label}: {_what(site)} matches {len(nodes)} places in {hits[0].place}, "
            f"expected {site.expect}",
            site.span,
            notes=_listed(nodes),
            help="give a longer dotted name, 'within', 'arg_contains' or 'nth'; "
            "or 'expect' if all are meant",
        )
        return None
    first = nodes[0][0]
    return Match(first.source, first.place, first.scope, tuple(node for _, node in nodes))


def _scopes(
    site: Site, tree: Tree, place: str, module: str, qualname: str, diagnostics: Diagnostics
) -> list[Match] | None:
    if module.split(".")[0] != tree.package:
        diagnostics.error(
            "CF403",
            f"module {module!r} is not in the engine package {tree.package!r}",
            site.span,
        )
        return None
    path = module_file(tree.root, module)
    if path is None:
        return []
    source = tree.read(path)
    if source is None:
        diagnostics.error("CF410", f"cannot read {tree.broken[path]}", site.span)
        return None
    if not qualname:
        return [Match(source, place, source.tree, ())]
    return [Match(source, place, scope, ()) for scope in find_scopes(source.tree, qualname)]


def _matches(site: Site, match: Match) -> tuple[ast.AST, ...]:
    test = _test(site, match.source)
    found = [
        node
        for node in walk_scope(match.scope)
        if test(node)
        and (site.within is None or _inside(match, node, site.within))
        and (site.arg_contains is None or site.arg_contains in _arguments(match.source, node))
    ]
    return tuple(sorted(found, key=_position))


def _position(node: ast.AST) -> tuple[int, int, int, int]:
    end = node.func if isinstance(node, ast.Call) else node
    return (
        getattr(end, "end_lineno", 0),
        getattr(end, "end_col_offset", 0),
        getattr(node, "lineno", 0),
        getattr(node, "col_offset", 0),
    )


def _test(site: Site, source: Source) -> Callable[[ast.AST], bool]:
    names = site.names
    if site.target == "call":
        last = {name.rpartition(".")[2] for name in names}

        def call(node: ast.AST) -> bool:
            if not isinstance(node, ast.Call):
                return False
            if isinstance(node.func, ast.Attribute | ast.Name):
                end = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                if end not in last:
                    return False
            parts = dotted(node.func)
            return any(ends_with(parts, name) for name in names)

        return call
    if site.target == "import":
        module = module_name(source.path)
        package = source.path.endswith("/__init__.py")
        wanted = [_import_name(name) for name in names]
        return lambda node: (
            isinstance(node, ast.Import | ast.ImportFrom)
            and any(
                isinstance(node, kind) and ends_with(parts, name)
                for parts in imported(node, module, package)
                for kind, name in wanted
            )
        )
    return lambda node: any(
        ends_with(dotted(target), name) for target in targets(node) for name in names
    )


def _import_name(text: str) -> tuple[tuple[type[ast.stmt], ...], str]:
    """``a.b`` is either ``import a.b`` or ``from a import b``; written out, just that one."""
    words = text.split()
    if words[:1] == ["import"] and len(words) == 2:
        return (ast.Import,), words[1]
    if words[:1] == ["from"] and words[2:3] == ["import"] and len(words) == 4:
        return (ast.ImportFrom,), f"{words[1].lstrip('.')}.{words[3]}".lstrip(".")
    return (ast.Import, ast.ImportFrom), text


def _inside(match: Match, node: ast.AST, name: str) -> bool:
    names: list[str] = []
    for above, _, _ in match.source.ancestors(node):
        if above is match.scope:
            break
        if isinstance(above, DEFS):
            names.append(above.name)
    wanted = [part for part in name.split(".") if part != "<locals>"]
    return names[: len(wanted)] == wanted[::-1]


def _arguments(source: Source, node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        parts = [*node.args, *(keyword for keyword in node.keywords)]
    else:
        parts = [node]
    return "\n".join(text for p in parts for text in (source.segment(p), ast.unparse(p)))


def _what(site: Site) -> str:
    names = " or ".join(site.names)
    return names if names.startswith(("import ", "from ")) else f"{site.target} {names}"


def _listed(nodes: list[tuple[Match, ast.AST]]) -> list[Note]:
    notes = [Note(candidates.show(match.source, node), None) for match, node in nodes[: 2 * _SHOWN]]
    if len(nodes) > len(notes):
        notes.append(Note(f"... and {len(nodes) - len(notes)} more"))
    return notes


def _report_several_scopes(
    site: Site, scopes: list[Match], label: str, diagnostics: Diagnostics
) -> None:
    names = ", ".join(dict.fromkeys(match.place for match in scopes))
    diagnostics.error(
        "CF406",
        f"{label}: several places exist for one site: {names}",
        site.span,
        notes=[Note(candidates.show(m.source, m.scope)) for m in scopes[:_SHOWN]],
        help="of the candidates in 'in' exactly one must exist in this engine version",
    )


def _report_missing(
    site: Site, tree: Tree, missing: list[str], label: str, diagnostics: Diagnostics
) -> None:
    place = missing[0] if missing else ""
    module = place.partition(":")[0]
    found = candidates.nearest_functions(tree.index(), missing, site.names)
    notes = [Note(text) for text in found[:_SHOWN]]
    if not any(module_file(tree.root, p.partition(":")[0]) for p in missing):
        near = candidates.nearest_modules(tree.index(), module)
        notes = [*(Note(f"module {name}") for name in near[:2]), *notes]
        text = f"no module {module!r} in the engine"
        code = "CF403"
    else:
        text = f"no function or class {place!r} in the engine"
        code = "CF404"
    if len(missing) > 1:
        text += f" (nor {', '.join(missing[1:])})"
    diagnostics.error(
        code,
        f"{label}: {text}",
        site.span,
        notes=notes,
        help="nearest candidates are listed above" if notes else None,
    )


def _report_no_match(
    site: Site, tree: Tree, scopes: list[Match], label: str, diagnostics: Diagnostics
) -> None:
    notes: list[Note] = []
    for match in scopes:
        near = candidates.nearest_nodes(match.source, match.scope, site.target or "", site.names)
        notes += [Note(text) for text in near[:_SHOWN]]
    if site.target == "call":
        path = scopes[0].source.path
        other = candidates.functions_with_call(tree.index(), site.names, path)
        notes += [Note(text) for text in other[:_SHOWN]]
    limits = [
        f"{key} {value!r}"
        for key, value in (("within", site.within), ("arg_contains", site.arg_contains))
        if value
    ]
    extra = f" with {' and '.join(limits)}" if limits else ""
    where = " or ".join(dict.fromkeys(match.place for match in scopes))
    diagnostics.error(
        "CF405",
        f"{label}: {_what(site)}{extra} not found in {where}",
        site.span,
        notes=notes,
        help="nearest candidates are listed above" if notes else None,
    )
