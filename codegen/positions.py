"""From a matched node to the lines where calls go in; refused where no line is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cfac.codegen.places import DEFS, FUNCTIONS, Def, blocks, statements
from cfac.codegen.source import Source
from cfac.compiler.model import At

Role = Literal["here", "before", "after"]
_REST = re.compile(r"[ \t\f]*;?[ \t\f]*(#[^\r\n]*)?[\r\n]*\Z")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_USE_BEFORE = "use at: before, or at: replace_callee"


class Refused(Exception):
    """A place where an insertion would not run where the spec says."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Point:
    """A place between two statements: new lines go before line ``line``.

    ``block`` is the statement list of ``owner`` that they join, at ``index``.
    """

    owner: ast.AST
    block: list[ast.stmt]
    index: int
    line: int
    indent: str
    eol: str
    depth: int


def points(
    source: Source, scope: ast.Module | Def, node: ast.AST | None, at: At
) -> list[tuple[Role, Point]]:
    """The insertion points of a site, in source order; Refused if there is no right one."""
    if at == "entry":
        return [("here", entry(source, scope))]
    if at == "exit":
        exits: list[tuple[Role, Point]] = [("here", point) for point in _exits(source, scope)]
        if not exits:
            raise Refused("control never runs off the end of it, nor returns")
        return exits
    assert node is not None
    if at == "around":
        return [("before", _before(source, node)), ("after", _after(source, node))]
    if at == "before":
        return [("before", _before(source, node))]
    return [("after", _after(source, node))]


def in_coroutine(source: Source, point: Point) -> bool:
    """Whether a point is in the body of an ``async def`` (not of a function nested in it)."""
    chain = [point.owner, *(above for above, _, _ in source.ancestors(point.owner))]
    inner = next((node for node in chain if isinstance(node, FUNCTIONS)), None)
    return isinstance(inner, ast.AsyncFunctionDef)


# --- blocks and lines ---------------------------------------------------------


def first_line(statement: ast.stmt) -> int:
    """The line a statement begins on, its decorators included."""
    decorators = statement.decorator_list if isinstance(statement, DEFS) else []
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


#: The owner of a statement, the block of it that has the statement, and its place there.
Home = tuple[ast.AST, list[ast.stmt], int]


def header(block: list[ast.stmt], module: bool) -> int:
    """How many leading statements are the docstring and, in a module, future imports."""
    count = 0
    if block and isinstance(block[0], ast.Expr) and isinstance(block[0].value, ast.Constant):
        count = int(isinstance(block[0].value.value, str))
    while (
        module
        and count < len(block)
        and isinstance(entry := block[count], ast.ImportFrom)
        and entry.module == "__future__"
        and entry.level == 0
    ):
        count += 1
    return count


def _begins_line(source: Source, statement: ast.stmt) -> bool:
    line = first_line(statement)
    indent = len(source.indent(line))
    rest = source.line(line)[indent:]
    if getattr(statement, "decorator_list", None):
        if not rest.startswith("@"):
            return False
    elif source.offset(line, statement.col_offset) != source.starts[line - 1] + indent:
        return False
    if line == 1:
        return True
    above = source.line(line - 1).rstrip("\r\n")
    return not above.endswith("\\") or above.lstrip().startswith("#")


def _ends_line(source: Source, statement: ast.stmt) -> bool:
    line = statement.end_lineno or statement.lineno
    offset = source.offset(line, statement.end_col_offset or 0)
    end = source.starts[line] if line < source.lines else len(source.text)
    return _REST.match(source.text[offset:end]) is not None


def _depth(source: Source, owner: ast.AST) -> int:
    return sum(1 for _ in source.ancestors(owner))


def line_before(source: Source, owner: ast.AST, block: list[ast.stmt], index: int) -> Point:
    """The point before a statement of a block."""
    statement = block[index]
    _refuse_in_header(owner, block, index)
    if not _begins_line(source, block[0]) and not isinstance(owner, ast.Module):
        raise Refused(_one_line(source, statement))
    if not _begins_line(source, statement):
        raise Refused(
            f"line {statement.lineno}: another statement precedes on the same line",
            "put the statement on a line of its own",
        )
    line = first_line(statement)
    return Point(
        owner,
        block,
        index,
        line,
        source.indent(line),
        source.eol(line),
        _depth(source, owner),
    )


def line_after(source: Source, owner: ast.AST, block: list[ast.stmt], index: int) -> Point:
    """The point after a statement of a block."""
    statement = block[index]
    _refuse_in_header(owner, block, index + 1)
    if not _begins_line(source, block[0]):
        raise Refused(_one_line(source, statement))
    if not _ends_line(source, statement):
        raise Refused(
            f"line {statement.end_lineno}: another statement follows on the same line",
            "put the statement on a line of its own",
        )
    near = statement if _begins_line(source, statement) else block[0]
    end = statement.end_lineno or statement.lineno
    return Point(
        owner,
        block,
        index + 1,
        end + 1,
        source.indent(first_line(near)),
        source.eol(end),
        _depth(source, owner),
    )


def _refuse_in_header(owner: ast.AST, block: list[ast.stmt], index: int) -> None:
    if isinstance(owner, ast.Module) and index < header(block, module=True):
        raise Refused(
            f"line {block[index].lineno}: nothing may come before a docstring or an import "
            "from __future__"
        )


def _one_line(source: Source, statement: ast.stmt) -> str:
    return (
        f"line {statement.lineno}: the statement is in a one-line suite "
        f"({source.line(statement.lineno).strip()[:60]!r})"
    )


# --- entry and exit -----------------------------------------------------------


def entry(source: Source, scope: ast.Module | Def) -> Point:
    """The first statement after the docstring (and future imports) of a body."""
    if isinstance(scope, ast.ClassDef):
        raise Refused(f"{scope.name} is a class", "name one of its methods")
    block = scope.body
    index = header(block, isinstance(scope, ast.Module))
    if index < len(block):
        return line_before(source, scope, block, index)
    if index:
        return line_after(source, scope, block, index - 1)
    line = source.lines + 1
    return Point(scope, block, 0, line, "", source.eol(line), 0)


def _exits(source: Source, scope: ast.Module | Def) -> Iterator[Point]:
    if isinstance(scope, ast.ClassDef):
        raise Refused(f"{scope.name} is a class", "name one of its methods")
    if isinstance(scope, FUNCTIONS):
        for statement in statements(scope):
            if not isinstance(statement, ast.Return):
                continue
            if not _is_plain(statement.value):
                raise Refused(
                    f"line {statement.lineno}: the return's value does work, so nothing can be "
                    "put between it and the return",
                    "bind at: after or at: replace_callee to the call that does the work",
                )
            yield line_before(source, *home(source, statement))
    if not scope.body:
        yield entry(source, scope)
    elif not _ends_flow(scope.body):
        yield line_after(source, scope, scope.body, len(scope.body) - 1)


def _is_plain(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Attribute):
        return _is_plain(value.value)
    if isinstance(value, ast.Tuple):
        return all(map(_is_plain, value.elts))
    return value is None or isinstance(value, ast.Name | ast.Constant)


def _ends_flow(block: list[ast.stmt]) -> bool:
    """Whether control surely never runs off the end of a block."""
    last = block[-1]
    if isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return True
    if isinstance(last, ast.If):
        return bool(last.orelse) and _ends_flow(last.body) and _ends_flow(last.orelse)
    if isinstance(last, ast.While):
        forever = isinstance(last.test, ast.Constant) and bool(last.test.value)
        return forever and not any(_breaks(last.body))
    if isinstance(last, ast.With | ast.AsyncWith):
        return isinstance(last.body[-1], ast.Return) and _ends_flow(last.body)
    if isinstance(last, ast.Try):
        if last.finalbody and _ends_flow(last.finalbody):
            return True
        main = _ends_flow(last.orelse) if last.orelse else _ends_flow(last.body)
        return main and all(_ends_flow(handler.body) for handler in last.handlers)
    return False


def _breaks(block: list[ast.stmt]) -> Iterator[bool]:
    for statement in block:
        if isinstance(statement, ast.Break):
            yield True
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            yield from _breaks(statement.orelse)
        elif not isinstance(statement, DEFS):
            for _, inner in blocks(statement):
                yield from _breaks(inner)
            for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                yield from _breaks(part.body)


# --- before and after ---------------------------------------------------------


def home(source: Source, statement: ast.stmt) -> Home:
    """Where a statement stands: its owner, the block of it that it is in, and its place there."""
    link = source.parent(statement)
    assert link is not None
    owner, field = link
    block: list[ast.stmt] = getattr(owner, field)
    return owner, block, next(k for k, entry in enumerate(block) if entry is statement)


def _enclosing(source: Source, node: ast.AST) -> tuple[ast.stmt, str, ast.AST]:
    """The statement that runs a node, and the field and child of it that hold the node.

    Refused if the node does not run exactly when its statement does.
    """
    if isinstance(node, ast.stmt):
        return node, "", node
    line = getattr(node, "lineno", 0)
    for above, field, child in source.ancestors(node):
        if isinstance(above, ast.stmt):
            return above, field, child
        reason = _elsewhere(source, above, field, child)
        if reason:
            raise Refused(
                f"line {line}: the call is in {reason}, so it does not run "
                "where its statement does",
                "use at: replace_callee",
            )
    raise AssertionError("every expression is in a statement")


def _elsewhere(source: Source, above: ast.AST, field: str, child: ast.AST) -> str | None:
    """Why ``child`` may not run when ``above`` does, or None."""
    if isinstance(above, ast.Lambda):
        return "a lambda" if field == "body" else None
    if isinstance(above, _COMPREHENSIONS):
        if field == "generators" and child is above.generators[0]:
            return None
        return "a comprehension or generator expression"
    if isinstance(above, ast.comprehension):
        return None if field == "iter" else "a comprehension's condition"
    if isinstance(above, ast.BoolOp) and child is not above.values[0]:
        return "an and/or that may skip it"
    if isinstance(above, ast.IfExp) and field != "test":
        return "a conditional expression"
    if (
        isinstance(above, ast.Compare)
        and field == "comparators"
        and child is not above.comparators[0]
    ):
        return "a chained comparison that may skip it"
    if isinstance(above, ast.ExceptHandler):
        return "an except clause"
    if isinstance(above, ast.match_case):
        return "a case guard"
    if isinstance(above, ast.arg):
        return "an annotation"
    return None


def where(source: Source, node: ast.AST) -> Point:
    """The point of a node's own statement, only for looking up names: nothing goes there."""
    statement = node if isinstance(node, ast.stmt) else None
    for above, _, _ in source.ancestors(node):
        if statement is None and isinstance(above, ast.stmt):
            statement = above
    assert statement is not None
    return Point(*home(source, statement), first_line(statement), "", "\n", 0)


def _before(source: Source, node: ast.AST) -> Point:
    statement, field, child = _enclosing(source, node)
    line = statement.lineno
    _refuse_unevaluated(statement, field)
    if isinstance(statement, ast.While):
        raise Refused(
            f"line {line}: a while condition runs again and again",
            "bind a call in the loop's body, or use at: replace_callee",
        )
    place = home(source, statement)
    if isinstance(statement, ast.If) and field == "test" and is_elif(source, statement):
        raise Refused(f"line {line}: nothing can go before an elif", "use at: replace_callee")
    if isinstance(statement, ast.With | ast.AsyncWith) and child is not statement.items[0]:
        raise Refused(
            f"line {line}: an earlier item of the with statement runs first",
            "use at: replace_callee",
        )
    return line_before(source, *place)


def _after(source: Source, node: ast.AST) -> Point:
    statement, field, child = _enclosing(source, node)
    line = statement.lineno
    _refuse_unevaluated(statement, field)
    if isinstance(statement, ast.With | ast.AsyncWith):
        if child is not statement.items[-1]:
            raise Refused(
                f"line {line}: a later item of the with statement runs before its body",
                "use at: replace_callee",
            )
        return line_before(source, statement, statement.body, 0)
    if isinstance(statement, ast.Return):
        raise Refused(
            f"line {line}: the call's value is returned at once; nothing runs after it",
            "use at: replace_callee",
        )
    if isinstance(statement, ast.Raise):
        raise Refused(f"line {line}: nothing runs after a raise", _USE_BEFORE)
    if isinstance(statement, ast.ClassDef):
        raise Refused(
            f"line {line}: the class body runs between the call and the next statement",
            _USE_BEFORE,
        )
    compound = ast.If | ast.While | ast.For | ast.AsyncFor | ast.Match
    if isinstance(statement, compound) and field:
        kind = type(statement).__name__.replace("Async", "async ").lower()
        kind = f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
        raise Refused(
            f"line {line}: the call is in the header of {kind} statement; "
            "what runs after it depends on its value",
            _USE_BEFORE,
        )
    return line_after(source, *home(source, statement))


def _refuse_unevaluated(statement: ast.stmt, field: str) -> None:
    line = statement.lineno
    if field in ("annotation", "returns", "type_params"):
        raise Refused(f"line {line}: an annotation may never run")
    if isinstance(statement, ast.Assert):
        raise Refused(f"line {line}: an assert does not run under python -O")
    if type(statement).__name__ == "TypeAlias":
        raise Refused(f"line {line}: a type alias is evaluated only when it is asked for")
    if isinstance(statement, ast.For | ast.AsyncFor) and field == "target":
        raise Refused(f"line {line}: a loop's target runs in every iteration")


def is_elif(source: Source, statement: ast.If) -> bool:
    """Whether an ``if`` statement is written as the ``elif`` of another one."""
    start = source.offset(statement.lineno, statement.col_offset)
    return source.text.startswith("elif", start)
