"""Work of a module's import, done at its first use instead.

`deferred` is for decorators whose application is costly although few of the functions are
ever called, as ``torch.compile``, which imports the compiler.  `later` is for calls that
change a module that may never be needed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

#: By these Dynamo finds the function in a compiled one, which it traces in its place
#: (torch/_dynamo/eval_frame.py); a deferred one must look the same to it.
_DYNAMO = ("_torchdynamo_inline", "_torchdynamo_orig_callable")


def deferred(decorator: Callable[..., Any]) -> Callable[..., Any]:
    """``decorator``, so that a function is decorated when it is first called.

    It may be applied to a function, with options or without, or return the decorator when
    called with options only.  What is no Python function is decorated at once.
    """

    def apply(*arguments: Any, **options: Any) -> Any:
        if arguments:
            function, *rest = arguments
            return _at_first_call(lambda f: decorator(f, *rest, **options), function)
        return lambda function: _at_first_call(lambda f: decorator(**options)(f), function)

    return apply


def _at_first_call(decorate: Callable[[Any], Any], function: Any) -> Any:
    if not isinstance(function, FunctionType):
        return decorate(function)
    lock = threading.RLock()
    real: Any = None

    @functools.wraps(function)
    def first(*arguments: Any, **options: Any) -> Any:
        nonlocal real
        if real is None:
            with lock:
                if real is None:
                    real = decorate(function)
        return real(*arguments, **options)

    for name in _DYNAMO:
        setattr(first, name, function)
    return first


#: (module, import statement) -> the names that it will bind there
_put_off: dict[tuple[str, str], list[str]] = {}


def put_off(statement: str, names: list[str], namespace: dict[str, Any]) -> None:
    """Note an import statement of the module whose globals ``namespace`` is, to be done later.

    Until then the module answers for the names by a ``__getattr__`` (PEP 562), so that
    other modules may import them from it.
    """
    module = namespace["__name__"]
    first = not any(owner == module for owner, _ in list(_put_off))
    _put_off[module, statement] = names
    if not first:
        return

    def ask(name: str) -> Any:
        for (owner, import_), bound in list(_put_off.items()):
            if owner == module and name in bound:
                do_import(import_, namespace)
                return namespace[name]
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    namespace["__getattr__"] = ask


def do_import(statement: str, namespace: dict[str, Any]) -> None:
    """Do an import that was put off, unless it is done already.  Threads may meet here."""
    key = (namespace["__name__"], statement)
    if key in _put_off:
        exec(statement, namespace)  # noqa: S102 (the module's own statement)
        _put_off.pop(key, None)


def later(callee: Callable[..., Any], until: str) -> Callable[..., Any]:
    """``callee``, so that a call is made right after the import of the module ``until``.

    It is made at once where the module is imported already.  What it returns is lost, and
    what it raises comes out of that import.
    """

    def call(*arguments: Any, **options: Any) -> None:
        @contextlib.contextmanager
        def then_call() -> Iterator[None]:
            yield
            callee(*arguments, **options)

        if until in sys.modules:
            callee(*arguments, **options)
        else:
            during(until, then_call)

    return call


def defer_within(module: str, decorator: str) -> None:
    """Defer ``decorator`` (as in ``torch.compile``) in a module, when that is imported.

    For modules that no patch reaches: the decorator is exchanged while the module's code
    runs, for all threads; nothing happens where there is no such decorator.
    """
    owner_name, _, name = decorator.rpartition(".")

    @contextlib.contextmanager
    def exchanged() -> Iterator[None]:
        owner = sys.modules.get(owner_name)
        own = getattr(owner, name, None)
        if own is None:
            yield
            return
        setattr(owner, name, deferred(own))
        try:
            yield
        finally:
            setattr(owner, name, own)

    if module not in sys.modules:
        during(module, exchanged)


def during(module: str, context: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Run the code of a module, when it is imported, in a context (until that succeeds)."""
    sys.meta_path.insert(0, _During(module, context))


class _During:
    """Finds one module as the others do; its code then runs in a context."""

    def __init__(
        self, name: str, context: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self.name = name
        self.context = context

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        """The module's spec (sys.meta_path)."""
        if fullname != self.name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]  # of the same module, too
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_within(module: ModuleType) -> None:
            with self.context():
                execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)

        spec.loader.exec_module = execute_within  # type: ignore[method-assign]
        return spec
