"""Mutations of the statement that an anchor is at: the planted places move with it."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable

from mutation_case import Case, clean
from mutation_scopes import HARMLESS, Mutation, code, head, text_of

STATEMENTS: dict[str, Mutation] = {}


def statement(harmless: bool = False, calls: bool = False) -> Callable[[Mutation], Mutation]:
    """Register a mutation; it is left out where the anchor has no statement (or no call)."""

    def register(mutation: Mutation) -> Mutation:
        def run(case: Case) -> str | bytes | None:
            if case.statement is None or (calls and not isinstance(case.call, ast.Call)):
                return None
            return mutation(case)

        STATEMENTS[mutation.__name__] = run
        if harmless:
            HARMLESS.add(mutation.__name__)
        return mutation

    return register


def unit_becomes(case: Case, *new: ast.stmt) -> str:
    case.block[case.low : case.high] = new
    return text_of(case)


def copy_of(case: Case) -> ast.stmt:
    found = clean(case.statement)  # type: ignore[arg-type]
    assert isinstance(found, ast.stmt)
    return found


def wrapped(case: Case, text: str, field: str = "body") -> str:
    [outer] = code(text)
    setattr(outer, field, case.unit)
    return unit_becomes(case, outer)


# --- moved into another block -----------------------------------------------------


@statement(harmless=True)
def into_with(case: Case) -> str:
    return wrapped(case, "with tracing():\n    pass")


@statement(harmless=True)
def into_try_except(case: Case) -> str:
    return wrapped(case, "try:\n    pass\nexcept Exception:\n    raise")


@statement(harmless=True)
def into_try_finally(case: Case) -> str:
    return wrapped(case, "try:\n    pass\nfinally:\n    done()")


@statement(harmless=True)
def into_finally(case: Case) -> str:
    return wrapped(case, "try:\n    pass\nfinally:\n    pass", "finalbody")


@statement(harmless=True)
def into_try_else(case: Case) -> str:
    return wrapped(case, "try:\n    pass\nexcept Exception:\n    pass\nelse:\n    pass", "orelse")


@statement(harmless=True)
def into_if(case: Case) -> str:
    return wrapped(case, "if enabled():\n    pass")


@statement(harmless=True)
def into_else(case: Case) -> str:
    return wrapped(case, "if disabled():\n    pass\nelse:\n    pass", "orelse")


@statement(harmless=True)
def into_for(case: Case) -> str:
    return wrapped(case, "for attempt in range(3):\n    pass")


@statement(harmless=True)
def into_while_else(case: Case) -> str:
    return wrapped(case, "while waiting():\n    pass\nelse:\n    pass", "orelse")


@statement(harmless=True)
def into_match(case: Case) -> str:
    [outer] = code("match mode:\n    case 'a':\n        pass\n    case _:\n        pass")
    outer.cases[1].body = case.unit  # type: ignore[attr-defined]
    return unit_becomes(case, outer)


@statement()
def into_except(case: Case) -> str:
    [outer] = code("try:\n    fast()\nexcept Exception:\n    pass")
    outer.handlers[0].body = case.unit  # type: ignore[attr-defined]
    return unit_becomes(case, outer)


@statement()
def into_closure(case: Case) -> str:
    inner, call = code("def _inner():\n    pass\n_inner()")
    inner.body = case.unit  # type: ignore[attr-defined]
    return unit_becomes(case, inner, call)


@statement()
def into_async_closure(case: Case) -> str:
    inner, call = code("async def _inner():\n    pass\nrun(_inner())")
    inner.body = case.unit  # type: ignore[attr-defined]
    return unit_becomes(case, inner, call)


@statement()
def into_class_body(case: Case) -> str:
    return wrapped(case, "class _Local:\n    pass")


@statement()
def into_another_function(case: Case) -> str:
    [made] = code("def moved_out(self):\n    pass")
    made.body = case.unit  # type: ignore[attr-defined]
    case.tree.body.append(made)
    return unit_becomes(case, *code("moved_out(None)"))


@statement(harmless=True)
def one_place_up(case: Case) -> str | None:
    first = head(case.block) if case.block is getattr(case.scope, "body", None) else 0
    if case.low <= first:
        return None
    unit = case.unit
    case.block[case.low : case.high] = []
    case.block[case.low - 1 : case.low - 1] = unit
    return text_of(case)


@statement(harmless=True)
def one_place_down(case: Case) -> str | None:
    after = case.block[case.high :]
    if not after or isinstance(after[0], ast.Return | ast.Raise):
        return None
    unit = case.unit
    case.block[case.high + 1 : case.high + 1] = unit
    case.block[case.low : case.high] = []
    return text_of(case)


# --- twice, or not at all -----------------------------------------------------------


@statement()
def delete_statement(case: Case) -> str:
    return unit_becomes(case, ast.Pass())


@statement()
def twice_after(case: Case) -> str:
    return unit_becomes(case, *case.unit, copy_of(case))


@statement()
def twice_before(case: Case) -> str:
    return unit_becomes(case, copy_of(case), *case.unit)


@statement()
def again_in_else(case: Case) -> str:
    [outer] = code("if new_path():\n    pass\nelse:\n    pass")
    outer.body, outer.orelse = [copy_of(case)], case.unit  # type: ignore[attr-defined]
    return unit_becomes(case, outer)


@statement()
def again_in_a_retry(case: Case) -> str:
    [outer] = code("try:\n    pass\nexcept Exception:\n    pass")
    outer.body = case.unit  # type: ignore[attr-defined]
    outer.handlers[0].body = [copy_of(case)]  # type: ignore[attr-defined]
    return unit_becomes(case, outer)


@statement()
def again_at_the_end_of_the_function(case: Case) -> str:
    case.scope.body.append(copy_of(case))  # type: ignore[attr-defined]
    return text_of(case)


@statement()
def again_in_a_local_function(case: Case) -> str | None:
    if isinstance(case.scope, ast.Module):
        return None
    [inner] = code("def _retry():\n    pass")
    inner.body = [copy_of(case)]  # type: ignore[attr-defined]
    body = case.scope.body  # type: ignore[attr-defined]
    body.insert(head(body), inner)
    return text_of(case)


@statement(harmless=True)
def again_in_another_function(case: Case) -> str:
    [made] = code("def elsewhere(self):\n    pass")
    made.body = [copy_of(case)]  # type: ignore[attr-defined]
    case.tree.body.append(made)
    return text_of(case)


@statement(harmless=True)
def its_text_in_strings(case: Case) -> str:
    text = ast.unparse(copy_of(case))
    case.tree.body += [ast.Expr(ast.Constant(text)), *code(f"HELP = {text!r}")]
    body = case.scope.body  # type: ignore[attr-defined]
    body.insert(head(body), ast.Assign([ast.Name("hint")], ast.Constant(text)))
    return text_of(case)


# --- written otherwise ----------------------------------------------------------------


def _replace_call(case: Case, new: ast.expr) -> bool:
    """Put ``new`` where the anchor's call is in its statement."""
    assert case.statement is not None
    done = False

    class Swap(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            nonlocal done
            if node is case.call:
                done = True
                return new
            return self.generic_visit(node)

    position = case.block.index(case.statement)
    case.block[position] = Swap().visit(case.statement)
    case.statement = case.block[position]
    return done


def _expression(text: str, call: ast.AST | None) -> ast.expr:
    """``text`` with the call in place of the name CALL."""
    tree = ast.parse(text, mode="eval").body

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return call if node.id == "CALL" and call is not None else node

    found = Fill().visit(tree)
    assert isinstance(found, ast.expr)
    return found


def _rewritten(case: Case, text: str) -> str | None:
    return text_of(case) if _replace_call(case, _expression(text, case.call)) else None


@statement(calls=True)
def into_conditional_expression(case: Case) -> str | None:
    return _rewritten(case, "CALL if enabled() else None")


@statement(calls=True)
def into_and(case: Case) -> str | None:
    return _rewritten(case, "enabled() and CALL")


@statement(calls=True)
def into_comprehension(case: Case) -> str | None:
    return _rewritten(case, "[CALL for _ in range(2)]")


@statement(calls=True)
def into_generator(case: Case) -> str | None:
    return _rewritten(case, "later(CALL for _ in range(2))")


@statement(calls=True)
def into_lambda_called_later(case: Case) -> str | None:
    """The call is defined above; it runs where it did."""
    made = ast.Assign([ast.Name("_later")], _expression("lambda: CALL", case.call))
    if not _replace_call(case, _expression("_later()", None)):
        return None
    case.block.insert(case.low, made)
    return text_of(case)


@statement(calls=True)
def into_partial(case: Case) -> str | None:
    """Only the function is named; no call of it is left."""
    assert isinstance(case.call, ast.Call)
    call = case.call
    new = ast.Call(ast.Name("submit"), [call.func, *call.args], call.keywords)
    return text_of(case) if _replace_call(case, new) else None


@statement(calls=True)
def through_an_alias(case: Case) -> str | None:
    assert isinstance(case.call, ast.Call)
    made = ast.Assign([ast.Name("_alias")], copy.deepcopy(case.call.func))
    case.call.func = ast.Name("_alias")
    case.block.insert(case.low, made)
    return text_of(case)


@statement(calls=True)
def rename_callee(case: Case) -> str | None:
    assert isinstance(case.call, ast.Call)
    func = case.call.func
    if isinstance(func, ast.Attribute):
        func.attr += "_v2"
    elif isinstance(func, ast.Name):
        func.id += "_v2"
    return text_of(case)


@statement(calls=True)
def rename_receiver(case: Case) -> str | None:
    assert isinstance(case.call, ast.Call)
    func = case.call.func
    if not isinstance(func, ast.Attribute):
        return None
    func.value = ast.Name("renamed")
    return text_of(case)


@statement(calls=True)
def callee_from_a_module(case: Case) -> str | None:
    assert isinstance(case.call, ast.Call)
    case.call.func = ast.Attribute(ast.Name("impl"), ast.unparse(case.call.func).split(".")[-1])
    return text_of(case)


@statement(harmless=True, calls=True)
def as_an_argument(case: Case) -> str | None:
    return _rewritten(case, "checked(CALL, strict=True)")


@statement(harmless=True, calls=True)
def into_walrus(case: Case) -> str | None:
    return _rewritten(case, "checked((result_of_it := CALL))")


@statement(harmless=True, calls=True)
def awaited(case: Case) -> str | None:
    if isinstance(case.scope, ast.Module):
        return None
    from mutation_scopes import home

    block, k = home(case)
    if not _replace_call(case, _expression("await_CALL", None)):
        return None
    _swap_name(case, ast.Await(case.call))  # type: ignore[arg-type]
    fields = {name: getattr(case.scope, name) for name in case.scope._fields}
    block[k] = ast.AsyncFunctionDef(**fields)
    return text_of(case)


def _swap_name(case: Case, new: ast.expr) -> None:
    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return new if node.id == "await_CALL" else node

    Fill().visit(case.statement)  # type: ignore[arg-type]


@statement(harmless=True, calls=True)
def more_arguments(case: Case) -> str:
    assert isinstance(case.call, ast.Call)
    case.call.keywords.append(ast.keyword("trace", ast.Constant(True)))
    return text_of(case)


@statement(calls=True)
def into_return(case: Case) -> str | None:
    if isinstance(case.scope, ast.Module) or case.statement is None:
        return None
    position = case.block.index(case.statement)
    case.block[position] = ast.Return(case.call)  # type: ignore[arg-type]
    return text_of(case)


def _in_header(case: Case, text: str, put: Callable[[ast.stmt, ast.expr], None]) -> str | None:
    """The anchor's statement becomes ``text``, with the call put where ``put`` does."""
    if isinstance(case.statement, ast.With) or not isinstance(case.call, ast.Call):
        return None
    [outer] = code(text)
    put(outer, case.call)
    case.block[case.block.index(case.statement)] = outer  # type: ignore[arg-type]
    return text_of(case)


@statement(calls=True)
def into_if_header(case: Case) -> str | None:
    """Right only before; what is planted after it stays after the whole statement."""
    return _in_header(case, "if CALL:\n    done()", lambda s, call: setattr(s, "test", call))


@statement(calls=True)
def into_while_header(case: Case) -> str | None:
    return _in_header(case, "while CALL:\n    go()", lambda s, call: setattr(s, "test", call))


@statement(calls=True)
def into_elif_header(case: Case) -> str | None:
    text = "if first():\n    pass\nelif CALL:\n    pass"
    return _in_header(case, text, lambda s, call: setattr(s.orelse[0], "test", call))  # type: ignore[attr-defined]


@statement(calls=True)
def into_decorator(case: Case) -> str | None:
    text = "@CALL\ndef decorated():\n    pass"
    return _in_header(case, text, lambda s, call: setattr(s, "decorator_list", [call]))


@statement(calls=True)
def into_default_argument(case: Case) -> str | None:
    text = "def with_default(x=None):\n    pass"
    return _in_header(case, text, lambda s, call: setattr(s.args, "defaults", [call]))  # type: ignore[attr-defined]


@statement(calls=True)
def into_assert(case: Case) -> str | None:
    return _in_header(case, "assert CALL", lambda s, call: setattr(s, "test", call))


@statement(calls=True)
def into_second_with_item(case: Case) -> str | None:
    """An earlier item is entered before it; what is planted before it is before both."""
    if not isinstance(case.statement, ast.With):
        return None
    case.statement.items.insert(0, ast.withitem(ast.Name("earlier")))
    return text_of(case)


# --- imports and one-line suites ----------------------------------------------------------


@statement()
def import_from(case: Case) -> str | None:
    if not isinstance(case.statement, ast.Import):
        return None
    module, _, name = case.statement.names[0].name.rpartition(".")
    new = ast.ImportFrom(module, [ast.alias(name)], 0)
    case.block[case.block.index(case.statement)] = new
    return text_of(case)


@statement()
def import_among_others(case: Case) -> str | None:
    if not isinstance(case.statement, ast.Import):
        return None
    case.statement.names.append(ast.alias("os"))
    return text_of(case)


@statement(harmless=True)
def import_with_a_name(case: Case) -> str | None:
    if not isinstance(case.statement, ast.Import):
        return None
    case.statement.names[0].asname = "renamed"
    return text_of(case)


@statement()
def import_of_a_submodule(case: Case) -> str | None:
    if not isinstance(case.statement, ast.Import):
        return None
    case.statement.names[0].name += ".inner"
    return text_of(case)


def _joined(case: Case, text: str) -> str | None:
    """The unit's lines on one line: ``a; b``, after ``text``."""
    if any(hasattr(s, "body") for s in case.unit):
        return None
    line = "; ".join(ast.unparse(s) for s in case.unit)
    if "\n" in line:
        return None
    unit_becomes(case, *code("JOINED_HERE"))
    return text_of(case).replace("JOINED_HERE", text + line)


@statement()
def on_one_line_with_others(case: Case) -> str | None:
    return _joined(case, "first = 1; ")


@statement()
def into_one_line_if(case: Case) -> str | None:
    return _joined(case, "if enabled: ")
