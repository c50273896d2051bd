"""From ``module:qualname`` to a scope: module files, definitions, dotted names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def module_file(root: Path, module: str) -> str | None:
    """The file of a module or package, relative to ``root``, or None."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    base = "/".join(parts)
    for path in (f"{base}/__init__.py", f"{base}.py"):
        if (root / path).is_file():
            return path
    return None


def module_name(path: str) -> str:
    """The dotted name of a module file (``a/b/__init__.py`` is ``a.b``)."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def blocks(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    """The statement lists that a node holds itself, with their field's name."""
    for name in ("body", "orelse", "finalbody"):
        value = getattr(node, name, None)
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield name, value


def statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """Every statement of a scope in source order, not those of nested definitions."""
    for _, block in blocks(scope):
        for statement in block:
            yield statement
            if not isinstance(statement, DEFS):
                yield from statements(statement)
    for name in ("handlers", "cases"):
        for part in getattr(scope, name, ()):
            yield from statements(part)


def find_scopes(tree: ast.Module, qualname: str) -> list[Def]:
    """The definitions called ``qualname``; several if branches define it more than once."""
    scopes: list[ast.AST] = [tree]
    for name in (part for part in qualname.split(".") if part != "<locals>"):
        scopes = [
            found
            for scope in scopes
            for found in statements(scope)
            if isinstance(found, DEFS) and found.name == name
        ]
    return [scope for scope in scopes if isinstance(scope, DEFS) and not _is_overload(scope)]


def _is_overload(scope: Def) -> bool:
    """Whether a definition is only for type checkers."""
    return any(
        isinstance(decorator, ast.Name | ast.Attribute) and dotted(decorator)[-1] == "overload"
        for decorator in scope.decorator_list
    )


def definitions(scope: ast.AST, prefix: str = "") -> Iterator[tuple[str, Def]]:
    """Every function and class under a scope with its qualified name (no ``<locals>``)."""
    for statement in statements(scope):
        if isinstance(statement, DEFS):
            name = f"{prefix}{statement.name}"
            yield name, statement
            yield from definitions(statement, name + ".")


def walk_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes that belong to a scope.

    Functions nested in a function or class are part of it; of a module, only what
    runs when it is imported.
    """
    if not isinstance(scope, ast.Module):
        for part in getattr(scope, "body", ()):
            yield from ast.walk(part)
        return
    pending: list[ast.AST] = list(scope.body)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, FUNCTIONS):
            pending += [*node.decorator_list, node.args]
        else:
            pending += children(node)


def children(node: ast.AST) -> list[ast.AST]:
    """What ``ast.iter_child_nodes`` gives, in half the time."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
    return found


def dotted(node: ast.AST) -> list[str]:
    """The parts of a dotted expression: ``a.b().c`` is ``["a.b()", "c"]``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else ast.unparse(node))
    return parts[::-1]


def ends_with(parts: list[str], name: str) -> bool:
    """Whether ``name`` is a dotted suffix: ``b.start`` of ``a.b.start``, not of ``xb.start``."""
    wanted = name.split(".")
    return parts[-len(wanted) :] == wanted


def imported(node: ast.Import | ast.ImportFrom, module: str, is_package: bool) -> list[list[str]]:
    """The dotted names that an import statement brings in, relative ones resolved."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".") for alias in node.names]
    base = module.split(".")
    if node.level:
        up = node.level - (1 if is_package else 0)
        base = base[: len(base) - up] if up else base
    else:
        base = []
    base = base + (node.module.split(".") if node.module else [])
    return [[*base, alias.name] for alias in node.names]


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """The names and attributes that an assignment binds."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        found = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.NamedExpr) or (
        isinstance(node, ast.AnnAssign) and node.value is not None
    ):
        found = [node.target]
    while found:
        target = found.pop(0)
        if isinstance(target, ast.Tuple | ast.List):
            found += target.elts
        elif isinstance(target, ast.Starred):
            found.append(target.value)
        else:
            yield target
