"""Which names an inserted expression can see at a point of the source."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field

from cfac.codegen.places import DEFS, FUNCTIONS, Def
from cfac.codegen.positions import Point
from cfac.codegen.source import Source
from cfac.compiler.diagnostics import did_you_mean

_MODULE_NAMES = {"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__"}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Scope = ast.Module | Def


class BadExpression(Exception):
    """An expression of the spec that cannot stand in an inserted call."""


def parse_expression(text: str) -> tuple[str, ast.expr]:
    """An expression as it is inserted (one line, no comment) and its tree."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise BadExpression(f"{text.strip()!r} is not a Python expression: {reason}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.NamedExpr):
            kind = {"NamedExpr": ":="}.get(type(node).__name__, type(node).__name__.lower())
            raise BadExpression(
                f"{text.strip()!r}: {kind} is not possible, the expression is put in a lambda"
            )
        if isinstance(node, ast.Call) and ast.unparse(node) == "super()":
            raise BadExpression(f"{text.strip()!r}: super() does not work in a lambda")
    flat = text.strip()
    if any(mark in flat for mark in "#\r\n\f\v\x1c\x1d\x1e\x85\u2028\u2029"):
        flat = ast.unparse(tree)
    return flat, tree


def free_names(tree: ast.expr) -> set[str]:
    """Names that an expression reads from outside of itself."""
    inner: set[str] = set()
    read: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (inner if isinstance(node.ctx, ast.Store) else read).add(node.id)
        elif isinstance(node, ast.arg):
            inner.add(node.arg)
    return read - inner


@dataclass(slots=True)
class _Names:
    """What a scope binds: per name the nodes that bind it."""

    bound: dict[str, list[ast.AST]] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)  # declared global or nonlocal
    star: bool = False

    def add(self, name: str | None, node: ast.AST) -> None:
        if name:
            self.bound.setdefault(name, []).append(node)


def _collect(scope: Scope) -> _Names:
    names = _Names()
    pending: list[ast.AST] = list(reversed(scope.body))
    while pending:
        node = pending.pop()
        if isinstance(node, DEFS):
            names.add(node.name, node)
            pending += node.decorator_list
            pending += [node.args] if isinstance(node, FUNCTIONS) else node.bases
            continue
        if isinstance(node, ast.Lambda):
            pending.append(node.args)
            continue
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            pending += node.orelse
            continue
        _bind(names, node)
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.comprehension):
            children = iter([node.iter, *node.ifs])
        pending += reversed(list(children))
    return names


def _bind(names: _Names, node: ast.AST) -> None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        names.add(node.id, node)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            names.star |= alias.name == "*"
            names.add(alias.asname or alias.name.partition(".")[0], node)
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        names.add(node.name, node)
    elif isinstance(node, ast.MatchMapping):
        names.add(node.rest, node)
    elif isinstance(node, ast.Global | ast.Nonlocal):
        names.outer.update(node.names)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def _parameters(scope: Scope) -> set[str]:
    if not isinstance(scope, FUNCTIONS):
        return set()
    args = scope.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return {arg.arg for arg in every if arg is not None}


def _scopes(source: Source, point: Point) -> Iterator[Scope]:
    """The scopes that enclose a point, innermost first."""
    node: ast.AST | None = point.owner
    while node is not None:
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        link = source.parent(node)
        node = link[0] if link else None


def unbound(source: Source, point: Point, tree: ast.expr) -> Iterator[tuple[str, str, str | None]]:
    """Names of an expression that are not bound at a point: (name, why, did you mean)."""
    wanted = sorted(free_names(tree))
    scopes = [(scope, _collect(scope)) for scope in _scopes(source, point)] if wanted else []
    for name in wanted:
        problem = _lookup(source, point, scopes, name)
        if problem:
            yield name, problem, did_you_mean(name, _visible(source, point, scopes) - {name})


def _lookup(
    source: Source, point: Point, scopes: list[tuple[Scope, _Names]], name: str
) -> str | None:
    """None if ``name`` is bound, else what is wrong."""
    running = True  # whether the point itself runs in this scope, so that order counts
    for k, (scope, names) in enumerate(scopes):
        is_class = isinstance(scope, ast.ClassDef)
        if is_class:
            continue  # a lambda does not see the names of a class body
        if name in _parameters(scope):
            return None
        nodes = names.bound.get(name, [])
        if nodes and name not in names.outer:
            if not running:
                return None
            usable = [node for node in nodes if _usable(source, point, node)]
            if usable:
                return None
            lines = sorted({getattr(node, "lineno", 0) for node in nodes})
            if isinstance(scope, ast.Module) and (hasattr(builtins, name) or names.star):
                return None
            return f"{name!r} is bound only at line {lines[0]}, not yet or not on the way here"
        if isinstance(scope, FUNCTIONS):
            running = False
        if k == len(scopes) - 1:
            late = any(name in inner.outer for _, inner in scopes)
            if names.star or late or _declared_global(source, name):
                return None
    if hasattr(builtins, name) or name in _MODULE_NAMES:
        return None
    if name == "__class__" and any(isinstance(scope, ast.ClassDef) for scope, _ in scopes):
        return None
    return f"{name!r} is not bound here"


def _declared_global(source: Source, name: str) -> bool:
    if name not in source.text:
        return False
    return any(isinstance(n, ast.Global) and name in n.names for n in ast.walk(source.tree))


def _branches(source: Source, node: ast.AST) -> dict[ast.AST, str]:
    """The ifs, matches and handlers that a node is in, with the branch taken."""
    found: dict[ast.AST, str] = {}
    for above, name, child in source.ancestors(node):
        if isinstance(above, ast.If):
            found[above] = name
        elif isinstance(above, ast.Match):
            found[above] = f"{name}{above.cases.index(child)}" if name == "cases" else name  # type: ignore[arg-type]
        elif isinstance(above, ast.ExceptHandler):
            found[above] = ""
    return found


def _usable(source: Source, point: Point, node: ast.AST) -> bool:
    """Whether a binding can have run when control reaches the point."""
    if getattr(node, "lineno", 0) >= point.line:
        return False
    here: dict[ast.AST, str] = {}
    if point.block:
        near = point.block[min(point.index, len(point.block) - 1)]
        here = _branches(source, near)
    if isinstance(node, ast.ExceptHandler):
        return node in here  # its name is deleted at the handler's end
    for above, branch in _branches(source, node).items():
        other = here.get(above)
        if isinstance(above, ast.ExceptHandler) or other is None:
            continue
        pair = {other, branch}
        if len(pair) == 2 and not pair & {"test", "subject"}:
            return False
    return True


def _visible(source: Source, point: Point, scopes: list[tuple[Scope, _Names]]) -> set[str]:
    found: set[str] = set()
    for scope, names in scopes:
        if not isinstance(scope, ast.ClassDef):
            found |= _parameters(scope)
            found |= {
                name
                for name, nodes in names.bound.items()
                if isinstance(scope, ast.Module) or any(_usable(source, point, n) for n in nodes)
            }
    return found
