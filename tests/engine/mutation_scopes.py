"""Mutations of the function that an anchor is in, and of how its file is written."""

from __future__ import annotations

import ast
import copy
import io
import subprocess
import sys
import tokenize
from collections.abc import Callable

from mutation_case import MARK, Case, clean

Mutation = Callable[[Case], str | bytes | None]
SCOPES: dict[str, Mutation] = {}
LAYOUTS: dict[str, Mutation] = {}
#: Mutations after which an anchor must still be found: refusing would be a needless alarm.
HARMLESS: set[str] = set()


def scope(harmless: bool = False) -> Callable[[Mutation], Mutation]:
    """Register a mutation of a function; it is left out where the anchor is in a module."""

    def register(mutation: Mutation) -> Mutation:
        def run(case: Case) -> str | bytes | None:
            return None if isinstance(case.scope, ast.Module) else mutation(case)

        SCOPES[mutation.__name__] = run
        if harmless:
            HARMLESS.add(mutation.__name__)
        return mutation

    return register


def layout(mutation: Mutation) -> Mutation:
    LAYOUTS[mutation.__name__] = mutation
    HARMLESS.add(mutation.__name__)
    return mutation


def home(case: Case) -> tuple[list[ast.stmt], int]:
    """The block that the function's ``def`` is in, and its place there."""
    for above in reversed(case.path):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(above, name, [])
            for k, statement in enumerate(block):
                if statement is case.scope:
                    return block, k
    raise AssertionError("a function is in a block")


def head(body: list[ast.stmt]) -> int:
    """Where a body's docstring, and what is planted at its entry, ends."""
    k = 0
    if ast.get_docstring(ast.Module(body, [])) is not None:
        k = 1
    while k < len(body) and ast.unparse(body[k]) == f"{MARK}()":
        k += 1
    return k


def rest_of(case: Case) -> tuple[list[ast.stmt], list[ast.stmt], list[ast.stmt]]:
    """A function's body: its head, the middle, and what is planted at its very end."""
    body = case.scope.body  # type: ignore[attr-defined]
    start, end = head(body), len(body)
    while end > start and ast.unparse(body[end - 1]) == f"{MARK}()":
        end -= 1
    return body[:start], body[start:end], body[end:]


def text_of(case: Case) -> str:
    return ast.unparse(ast.fix_missing_locations(case.tree)) + "\n"


def rebuilt(case: Case, *middle: ast.stmt) -> str:
    first, _, last = rest_of(case)
    case.scope.body = [*first, *middle, *last]  # type: ignore[attr-defined]
    return text_of(case)


def code(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


# --- the function itself --------------------------------------------------------


@scope()
def rename_function(case: Case) -> str:
    case.scope.name += "_v2"  # type: ignore[attr-defined]
    return text_of(case)


@scope()
def rename_class(case: Case) -> str | None:
    if not isinstance(case.path[-1], ast.ClassDef):
        return None
    case.path[-1].name += "V2"
    return text_of(case)


@scope()
def delete_function(case: Case) -> str:
    block, k = home(case)
    block[k : k + 1] = [ast.Pass()]
    return text_of(case)


@scope()
def duplicate_function_after(case: Case) -> str:
    block, k = home(case)
    block.insert(k + 1, clean(case.scope))  # type: ignore[arg-type]
    return text_of(case)


@scope()
def duplicate_function_before(case: Case) -> str:
    block, k = home(case)
    block.insert(k, clean(case.scope))  # type: ignore[arg-type]
    return text_of(case)


@scope()
def another_definition_in_else(case: Case) -> str:
    block, k = home(case)
    other = clean(case.scope)
    block[k] = ast.If(ast.Name("NEW_PATH"), [block[k]], [other])  # type: ignore[list-item]
    return text_of(case)


@scope()
def new_path_with_stub(case: Case) -> str:
    """The real function has another name; the old name only raises.

    An entry belongs to the name, so what is planted there stays with it.  That the function
    is another one now is for the lock to say (the judge's ``review``).
    """
    block, k = home(case)
    stub = copy.deepcopy(case.scope)
    stub.body = code("raise NotImplementedError")  # type: ignore[attr-defined]
    if case.anchor.site.at == "entry":
        stub.body[:0] = code(f"{MARK}()")  # type: ignore[attr-defined]
        case.scope.body = rest_of(case)[1]  # type: ignore[attr-defined]
    stub.decorator_list = []  # type: ignore[attr-defined]
    case.scope.name += "_real"  # type: ignore[attr-defined]
    block.insert(k + 1, stub)  # type: ignore[arg-type]
    return text_of(case)


@scope(harmless=True)
def only_definition_in_if(case: Case) -> str:
    block, k = home(case)
    block[k] = ast.If(ast.Name("PLATFORM_OK"), [block[k]], [])
    return text_of(case)


@scope(harmless=True)
def definition_in_try(case: Case) -> str:
    block, k = home(case)
    tried = code("try:\n    pass\nexcept ImportError:\n    raise")[0]
    tried.body = [block[k]]  # type: ignore[attr-defined]
    block[k] = tried
    return text_of(case)


@scope(harmless=True)
def overload_stubs(case: Case) -> str:
    block, k = home(case)
    stub = copy.deepcopy(case.scope)
    stub.body = code("...")  # type: ignore[attr-defined]
    stub.decorator_list = [ast.Name("overload")]  # type: ignore[attr-defined]
    block[k:k] = [stub, copy.deepcopy(stub)]  # type: ignore[list-item]
    return text_of(case)


@scope(harmless=True)
def add_decorators(case: Case) -> str:
    wrap = ast.parse("functools.wraps(other)", mode="eval").body
    case.scope.decorator_list[:0] = [ast.Name("traced"), wrap]  # type: ignore[attr-defined]
    return text_of(case)


@scope(harmless=True)
def make_async(case: Case) -> str:
    block, k = home(case)
    fields = {name: getattr(case.scope, name) for name in case.scope._fields}
    block[k] = ast.AsyncFunctionDef(**fields)
    return text_of(case)


@scope(harmless=True)
def new_parameters(case: Case) -> str:
    case.scope.args.kwonlyargs.append(ast.arg("trace_id"))  # type: ignore[attr-defined]
    case.scope.args.kw_defaults.append(ast.Constant(None))  # type: ignore[attr-defined]
    return text_of(case)


@scope()
def move_to_new_class(case: Case) -> str:
    block, k = home(case)
    block[k : k + 1] = [ast.Pass()]
    [made] = code("class MovedHere:\n    pass")
    made.body = [case.scope]  # type: ignore[attr-defined, list-item]
    case.tree.body.append(made)
    return text_of(case)


@scope()
def move_into_closure_of_another_function(case: Case) -> str:
    block, k = home(case)
    name = case.scope.name  # type: ignore[attr-defined]
    outer = code(f"def make_{name}():\n    return {name}")[0]
    outer.body.insert(0, block[k])  # type: ignore[attr-defined]
    block[k] = outer
    return text_of(case)


@scope(harmless=True)
def same_method_of_another_class(case: Case) -> str:
    [made] = code("class AnotherOne:\n    pass")
    made.body = [clean(case.scope)]  # type: ignore[attr-defined, list-item]
    case.tree.body.append(made)
    return text_of(case)


@scope(harmless=True)
def move_to_the_end_of_its_block(case: Case) -> str:
    block, k = home(case)
    block.append(block.pop(k))
    return text_of(case)


@scope(harmless=True)
def move_its_class_to_the_end(case: Case) -> str | None:
    if len(case.path) < 2 or case.path[1] not in case.tree.body:
        return None
    case.tree.body.remove(case.path[1])  # type: ignore[arg-type]
    case.tree.body.append(case.path[1])  # type: ignore[arg-type]
    return text_of(case)


@scope(harmless=True)
def nested_function_of_the_same_name(case: Case) -> str:
    """Another function grows a local one of that name."""
    name = case.scope.name  # type: ignore[attr-defined]
    case.tree.body += code(f"def unrelated():\n    def {name}():\n        pass\n    return {name}")
    return text_of(case)


@scope()
def body_into_helper(case: Case) -> str:
    """The function only calls its former body."""
    block, k = home(case)
    first, middle, last = rest_of(case)
    helper = copy.deepcopy(case.scope)
    helper.name += "_impl"  # type: ignore[attr-defined]
    helper.body = middle  # type: ignore[attr-defined]
    case.scope.body = [*first, *code("return self._impl(*args)"), *last]  # type: ignore[attr-defined]
    block.insert(k + 1, helper)  # type: ignore[arg-type]
    return text_of(case)


@scope()
def body_into_closure(case: Case) -> str:
    first, middle, last = rest_of(case)
    inner, call = code("def _inner():\n    pass\n_inner()")
    inner.body = middle  # type: ignore[attr-defined]
    if not last:
        call = ast.Return(call.value)  # type: ignore[attr-defined]
    case.scope.body = [*first, inner, call, *last]  # type: ignore[attr-defined]
    return text_of(case)


def _wrapped(case: Case, text: str) -> str:
    [outer] = code(text)
    outer.body = rest_of(case)[1]  # type: ignore[attr-defined]
    return rebuilt(case, outer)


@scope()
def body_into_with(case: Case) -> str:
    return _wrapped(case, "with tracing('start'):\n    pass")


@scope()
def body_into_try_except(case: Case) -> str:
    return _wrapped(case, "try:\n    pass\nexcept Exception:\n    log()\n    raise")


@scope()
def body_into_try_finally(case: Case) -> str:
    return _wrapped(case, "try:\n    pass\nfinally:\n    done()")


@scope()
def body_into_if_else(case: Case) -> str:
    return _wrapped(case, "if supported():\n    pass\nelse:\n    raise RuntimeError")


@scope()
def body_into_loop(case: Case) -> str:
    """The loop may end without a return: the function's end is an exit too."""
    if case.anchor.site.at == "exit" and not rest_of(case)[2]:
        case.scope.body += code(f"{MARK}()")  # type: ignore[attr-defined]
    return _wrapped(case, "for attempt in range(3):\n    pass")


# --- how the file is written ------------------------------------------------------


def _formatted(case: Case, *options: str) -> bytes:
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--stdin-filename=x.py"]
    done = subprocess.run(
        [*command, *options, "-"], input=case.text.encode(), capture_output=True, check=True
    )
    return done.stdout


@layout
def ruff_format_narrow(case: Case) -> bytes:
    return _formatted(case, "--line-length=40")


@layout
def ruff_format_wide(case: Case) -> bytes:
    return _formatted(case, "--line-length=320", "--config=format.skip-magic-trailing-comma=true")


@layout
def ruff_format_tabs(case: Case) -> bytes:
    return _formatted(case, "--config=format.indent-style='tab'")


@layout
def ruff_format_single_quotes(case: Case) -> bytes:
    return _formatted(case, "--config=format.quote-style='single'")


@layout
def unparsed(case: Case) -> str:
    """No comments, no layout."""
    return text_of(case)


@layout
def carriage_returns(case: Case) -> bytes:
    return case.text.replace("\n", "\r\n").encode()


@layout
def byte_order_mark(case: Case) -> bytes:
    return b"\xef\xbb\xbf" + case.text.encode()


@layout
def no_final_newline(case: Case) -> str:
    return case.text.rstrip("\n")


@layout
def blank_lines_comments_and_form_feeds(case: Case) -> str:
    """Before each logical line: an empty line, a comment, a form feed."""
    starts: set[int] = set()
    fresh = True
    for token in tokenize.generate_tokens(io.StringIO(case.text).readline):
        if fresh and token.type not in (
            tokenize.NL,
            tokenize.COMMENT,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENCODING,
        ):
            starts.add(token.start[0])
            fresh = False
        if token.type == tokenize.NEWLINE:
            fresh = True
    out: list[str] = []
    for number, line in enumerate(case.text.splitlines(keepends=True), 1):
        if number in starts and MARK not in line and not _after_mark(out):
            out.append("\n# changed\n\f\n")
        out.append(line)
    return "".join(out)


def _after_mark(lines: list[str]) -> bool:
    return bool(lines) and MARK in lines[-1]
