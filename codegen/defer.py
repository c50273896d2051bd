"""Find what ``defer`` names: decorators and calls that run when a module is imported.

A deferred callee is wrapped like a replaced one; its arguments are evaluated where they
stand, only the call itself happens later.  What matches but cannot be deferred stays as
in stock and is listed with the reason; an entry that matches nothing is an error.

A module outside of the engine is not edited: the runtime exchanges the decorator while
that module is imported.  Whether it has such a decorator is not looked at.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from cfac.codegen import candidates
from cfac.codegen.anchors import Deferral, Tree
from cfac.codegen.defer_imports import Import, imports_of
from cfac.codegen.places import dotted, ends_with, module_file, module_name, walk_scope
from cfac.codegen.positions import Refused
from cfac.codegen.source import Source
from cfac.compiler.diagnostics import Diagnostics, Note
from cfac.compiler.model import Defer

_SHOWN = 6


def deferrals(entry: Defer, tree: Tree, diagnostics: Diagnostics) -> Sequence[Deferral]:
    """The places of one entry, in the order of the files' names and of their lines.

    Looked for once in a tree, however often it is asked for.
    """
    if entry not in tree.deferrals:
        own = Diagnostics()
        tree.deferrals[entry] = (_find(entry, tree, own), own)
    found, said = tree.deferrals[entry]
    diagnostics.extend(said)
    return found


def _find(entry: Defer, tree: Tree, diagnostics: Diagnostics) -> tuple[Deferral, ...]:
    found: list[Deferral] = []
    errors = len(diagnostics.errors)
    places = [place for place in entry.places if place.split(".")[0] == tree.package]
    sources = [s for place in places for s in _sources(entry, place, tree, diagnostics)]
    for source in {source.path: source for source in sources}.values():
        find = _decorated if entry.kind == "decorator" else _calls
        found += sorted(find(entry, source), key=lambda deferral: deferral.line)
    if places and not found and len(diagnostics.errors) == errors:
        _report_none(entry, sources, diagnostics)
    if entry.kind == "call" and len(found) > 1:
        diagnostics.error(
            "CF406",
            f"defer: call {entry.name} matches {len(found)} places, expected 1",
            entry.span,
            notes=[Note(f"{f.source.path}:{f.line}") for f in found[:_SHOWN]],
            help="give a longer dotted name, or the one module that is meant",
        )
    return tuple(found)


def deferred_imports(
    entry: Defer, tree: Tree, diagnostics: Diagnostics
) -> Iterator[tuple[Source, Import]]:
    """The import statements that an entry names, in the modules that it names one by one."""
    for place in entry.places:
        errors = len(diagnostics.errors)
        for source in _sources(entry, place, tree, diagnostics):
            try:
                found = imports_of(source, entry.name)
            except Refused as refused:
                report_refused(entry, source, refused.reason, diagnostics)
                continue
            if not found and len(diagnostics.errors) == errors:
                _report_none(entry, [source], diagnostics)
            yield from ((source, one) for one in found)


def report_refused(entry: Defer, source: Source, reason: str, diagnostics: Diagnostics) -> None:
    """An import that cannot be put off."""
    diagnostics.error(
        "CF407",
        f"the import of {entry.name} in {module_name(source.path)} cannot be deferred: {reason}",
        entry.span,
    )


def _sources(entry: Defer, place: str, tree: Tree, diagnostics: Diagnostics) -> Iterator[Source]:
    module = place.removesuffix(".**")
    path = module_file(tree.root, module)
    if path is None:
        near = candidates.nearest_modules(tree.index(), module)
        notes = [Note(f"module {name}") for name in near[:_SHOWN]]
        message = f"defer {entry.name}: no module {module!r} in the engine"
        diagnostics.error("CF403", message, entry.span, notes=notes)
        return
    if module == place:
        source = tree.read(path)
        if source is None:
            diagnostics.error("CF410", f"cannot read {tree.broken[path]}", entry.span)
        else:
            yield source
        return
    gap = rb"(?:\s|\\|#[^\n]*\n)*"  # what may stand around a dot: in parentheses, a comment too
    parts = [re.escape(part.encode()) for part in entry.name.split(".")]
    written = re.compile((gap + rb"\." + gap).join(parts))
    for name in tree.writing((tree.root / path).parent, written):
        if (source := tree.read(name)) is not None:
            yield source


def _decorated(entry: Defer, source: Source) -> Iterator[Deferral]:
    """Decorators, and assignments of what they return: ``fast = torch.compile(slow)``."""
    module = module_name(source.path)
    for node in walk_scope(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                callee = decorator.func if isinstance(decorator, ast.Call) else decorator
                if _named(callee, entry.name):
                    left = _unfit(node)
                    yield Deferral(
                        entry,
                        source,
                        f"{module}:{node.name}",
                        decorator.lineno,
                        None if left else callee,
                        left,
                    )
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            call = node.value
            if call.args and _named(call.func, entry.name):
                yield Deferral(entry, source, module, node.lineno, call.func)


def _calls(entry: Defer, source: Source) -> Iterator[Deferral]:
    for node in walk_scope(source.tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and _named(node.value.func, entry.name)
        ):
            own = dotted(node.value.func)[-1]
            runs = [
                statement
                for statement in source.tree.body
                if isinstance(statement, ast.FunctionDef) and statement.name == own
            ]
            yield Deferral(
                entry,
                source,
                module_name(source.path),
                node.lineno,
                node.value.func,
                runs=runs[-1] if runs else None,
            )


def _named(callee: ast.expr, name: str) -> bool:
    return isinstance(callee, ast.Name | ast.Attribute) and ends_with(dotted(callee), name)


def _unfit(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """Why a decorator of ``node`` is not deferred; empty if it is."""
    if isinstance(node, ast.ClassDef):
        return "it decorates a class"
    if isinstance(node, ast.AsyncFunctionDef):
        return "it decorates a coroutine function"
    for inner in ast.walk(node):
        if isinstance(inner, ast.Yield | ast.YieldFrom):
            return "it decorates a generator function"
    return ""


def _report_none(entry: Defer, sources: list[Source], diagnostics: Diagnostics) -> None:
    target = "import" if entry.kind == "import" else "call"
    notes = [
        Note(text)
        for source in sources[:_SHOWN]
        for text in candidates.nearest_nodes(source, source.tree, target, (entry.name,))
    ]
    diagnostics.error(
        "CF405",
        f"defer: no {entry.kind} {entry.name} runs at the import of {' or '.join(entry.places)}",
        entry.span,
        notes=notes[:_SHOWN],
        help="only what runs when a module is imported can be deferred",
    )
