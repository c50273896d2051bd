"""Put off an import of a module: where its names are used decides whether that is possible.

The statement becomes conditional, and each function that uses one of its names makes the
import before the first use, in the innermost block that has all of them.  It is refused
where a name is needed when the module itself is imported, or is bound a second time: then
the order of the two would matter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cfac.codegen.places import FUNCTIONS, imported, module_name
from cfac.codegen.positions import (
    Home,
    Point,
    Refused,
    header,
    home,
    is_elif,
    line_after,
    line_before,
)
from cfac.codegen.source import Source

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Import:
    """An import statement to put off: its text on one line, its names, and who uses them."""

    statement: ast.Import | ast.ImportFrom
    text: str
    names: tuple[str, ...]
    users: tuple[Function, ...]

    def point(self, source: Source, user: Function) -> Point:
        """Where a function of ``users`` makes the import; Refused if nothing can be put there.

        A block runs from its beginning, so what precedes the first use in a block that has
        all uses precedes each of them.
        """
        refused = Refused(f"line {user.lineno}: nothing can be put before its first use")
        for owner, block, index in reversed(_common_homes(source, user, set(self.names))):
            statement = block[index]
            if isinstance(statement, ast.If) and is_elif(source, statement):
                continue
            try:
                return line_before(source, owner, block, index)
            except Refused as error:
                refused = error
        raise refused


def imports_of(source: Source, name: str) -> list[Import]:
    """The statements at the top of a file's module that import from ``name`` (or it).

    Refused if one cannot be put off.
    """
    module, package = module_name(source.path), source.path.endswith("/__init__.py")
    body = source.tree.body
    found: list[Import] = []
    for node in _at_import(source.tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if name not in _modules(node, module, package):
            continue
        index = next((k for k, entry in enumerate(body) if entry is node), None)
        if index is None:
            raise Refused(f"line {node.lineno}: the import is in another statement")
        line_before(source, source.tree, body, index)
        line_after(source, source.tree, body, index)
        names = _bound(node)
        found.append(Import(node, ast.unparse(node), names, _users(source, node, set(names))))
    return found


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What is not in a function, nor for type checkers only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS) or _for_checkers(child):
            continue
        yield child
        yield from _at_import(child)


def _for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def _modules(node: ast.Import | ast.ImportFrom, module: str, package: bool) -> list[str]:
    """The dotted names of the modules that a statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [".".join(imported(node, module, package)[0][:-1])]


def _bound(node: ast.Import | ast.ImportFrom) -> tuple[str, ...]:
    for alias in node.names:
        if alias.name == "*":
            raise Refused(f"line {node.lineno}: it is not known which names the star stands for")
        if isinstance(node, ast.Import) and "." in alias.name and alias.asname is None:
            first = alias.name.partition(".")[0]
            raise Refused(f"line {node.lineno}: it binds the package {first!r}, not the module")
    return tuple(alias.asname or alias.name for alias in node.names)


def _users(
    source: Source, statement: ast.Import | ast.ImportFrom, names: set[str]
) -> tuple[Function, ...]:
    """The functions that use the names, outermost ones; Refused if anything else does."""
    body = source.tree.body
    future = {
        alias.name
        for entry in body[: header(body, True)]
        if isinstance(entry, ast.ImportFrom)
        for alias in entry.names
    }
    scan = _Scan(statement, names, "annotations" in future)
    for entry in body:
        scan.visit(entry)
    return tuple(scan.users)


class _Scan(ast.NodeVisitor):
    """Visits what runs when a module is imported.

    Annotations of fields and variables count: dataclasses and models evaluate them.
    """

    def __init__(self, statement: ast.stmt, names: set[str], future: bool) -> None:
        self.statement = statement
        self.names = names
        self.future = future
        self.users: list[Function] = []

    def visit(self, node: ast.AST) -> None:
        """Visit a node, unless it is the statement itself or for type checkers."""
        if node is not self.statement and not _for_checkers(node):
            super().visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.names:
            used = isinstance(node.ctx, ast.Load)
            what = "is used when the module is imported" if used else "is bound again"
            raise Refused(f"line {node.lineno}: {node.id} {what}")

    def _function(self, node: Function) -> None:
        self._binds(node, node.name)
        arguments = node.args
        evaluated: list[ast.expr | None] = [
            *node.decorator_list,
            *arguments.defaults,
            *arguments.kw_defaults,
        ]
        annotations = [
            node.returns,
            *(
                arg.annotation
                for arg in (
                    *arguments.posonlyargs,
                    *arguments.args,
                    *arguments.kwonlyargs,
                    *(a for a in (arguments.vararg, arguments.kwarg) if a),
                )
            ),
        ]
        if not self.future or node.decorator_list:  # a decorator may evaluate them
            evaluated += annotations
        for part in evaluated:
            if part is not None:
                self.visit(part)
        if _uses(node.body, self.names):
            self.users.append(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._binds(node, node.name)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._binds(node, alias.asname or alias.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._binds(node, alias.asname or alias.name)

    def _binds(self, node: ast.stmt, name: str) -> None:
        if name in self.names:
            raise Refused(f"line {node.lineno}: {name} is bound again")
        if name == "__getattr__" and isinstance(node, ast.FunctionDef) and node.col_offset == 0:
            raise Refused(f"line {node.lineno}: the module has a __getattr__ of its own")


def _common_homes(source: Source, user: Function, names: set[str]) -> list[Home]:
    """The blocks of a function that have all uses, outermost first, each with its first use."""
    common: list[Home] | None = None
    for statement in user.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in names:
                homes = _homes(source, user, node)
                shared = zip(common or homes, homes, strict=False)
                common = [
                    (owner, block, min(first, index))
                    for (owner, block, first), (_, other, index) in shared
                    if block is other
                ]
    return common or []


def _homes(source: Source, user: Function, node: ast.AST) -> list[Home]:
    """The statements of a function that hold a node, outermost first."""
    found: list[Home] = []
    for owner, _, child in source.ancestors(node):
        if isinstance(child, ast.stmt):
            found.append(home(source, child))
        if owner is user:
            break
    return found[::-1]


def _uses(body: Sequence[ast.stmt], names: set[str]) -> bool:
    used = False
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Global) and names & set(node.names):
                raise Refused(f"line {node.lineno}: a function binds {', '.join(node.names)}")
            used = used or (isinstance(node, ast.Name) and node.id in names)
    return used
