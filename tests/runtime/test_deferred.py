"""Work of imports moved to its first use: decorators, calls, and modules of others."""

import importlib
import importlib.util
import sys
import threading

import pytest
import tiny

from cfac.runtime.deferred import defer_within, deferred, do_import, later, put_off


class Compiler:
    """A decorator that notes when it is applied, in the three forms of torch.compile."""

    def __init__(self):
        self.applied = []

    def compile(self, function=None, **options):
        if function is None:
            return lambda function: self.compile(function, **options)
        self.applied.append((getattr(function, "__name__", function), options))

        def compiled(*arguments, **keywords):
            return "compiled", function(*arguments, **keywords)

        return compiled


@pytest.fixture
def compiler():
    return Compiler()


def test_every_form_is_applied_at_the_first_call_and_once(compiler):
    compile_ = deferred(compiler.compile)

    @compile_
    def bare(x):
        """Doc."""
        return x

    @compile_(mode="best")
    def with_options(x):
        return x

    def slow(x):
        return x

    assigned = compile_(slow, mode="good")
    assert compiler.applied == []
    assert (bare.__name__, bare.__doc__) == ("bare", "Doc.")
    calls = [bare(1), bare(x=2), with_options(3), assigned(4)]
    assert calls == [("compiled", k) for k in (1, 2, 3, 4)]
    assert compiler.applied == [
        ("bare", {}),
        ("with_options", {"mode": "best"}),
        ("slow", {"mode": "good"}),
    ]


def test_a_method_gets_its_instance(compiler):
    compile_ = deferred(compiler.compile)

    class Layer:
        @compile_
        def own(self, x):
            return type(self).__name__, x

        @staticmethod
        @compile_(mode="best")
        def static(x):
            return x

    assert Layer().own(1) == ("compiled", ("Layer", 1))
    assert Layer.static(2) == ("compiled", 2)


def test_what_is_no_function_is_decorated_at_once(compiler):
    compile_ = deferred(compiler.compile)
    module = type("Module", (), {"__call__": lambda self: 1})()
    compile_(module)
    compile_(mode="best")(len)
    assert compiler.applied == [(module, {}), ("len", {"mode": "best"})]


def test_threads_that_call_first_decorate_once(compiler):
    here, never = threading.Barrier(8), threading.Event()

    def decorate(function):
        never.wait(0.05)
        return compiler.compile(function)

    function = deferred(decorate)(lambda: None)

    def call():
        here.wait()
        function()

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiler.applied) == 1


def test_a_decorator_that_fails_fails_at_each_call():
    @deferred(lambda function: 1 / 0)
    def function():
        pass

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            function()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of the given text; returns its name, which no other test has."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []
    finders = list(sys.meta_path)

    def write(text):
        name = f"case_{abs(hash(tmp_path))}_{len(names)}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    yield write
    sys.meta_path[:] = finders
    for name in names:
        sys.modules.pop(name, None)


def test_a_call_comes_right_after_the_import_it_waits_for(module):
    name = module("items = [1]\n")
    calls = []
    later(lambda *a, **k: calls.append((a, k, sys.modules[name].items)), name)(1, x=2)
    assert importlib.util.find_spec(name) is not None  # only looking makes no call
    assert calls == []
    importlib.import_module(name)
    assert calls == [((1,), {"x": 2}, [1])]
    later(calls.append, name)("at once")
    assert calls[-1] == "at once"


def test_a_failed_import_makes_no_call_and_the_next_one_does(module, tmp_path):
    name = module("1 / 0\n")
    calls = []
    later(calls.append, name)("called")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(name)
    assert calls == []
    (tmp_path / f"{name}.py").write_text("fine = True\n")
    importlib.import_module(name)
    assert calls == ["called"]


def test_a_decorator_is_exchanged_only_while_the_module_is_imported(module, monkeypatch, compiler):
    monkeypatch.setitem(sys.modules, "fast_compiler", compiler)
    own = compiler.compile
    decorated = "import fast_compiler\n@fast_compiler.compile\ndef f(): return 1\n"
    name, other, failing = module(decorated), module(decorated), module("1 / 0\n")
    for place in (name, failing):
        defer_within(place, "fast_compiler.compile")
    found = importlib.import_module(name)
    assert compiler.applied == []
    assert found.f() == ("compiled", 1)
    importlib.import_module(other)
    assert len(compiler.applied) == 2
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(failing)
    assert compiler.compile == own


def test_where_there_is_no_such_decorator_nothing_happens(module):
    name = module("fine = True\n")
    defer_within(name, "no_such_module.compile")
    assert importlib.import_module(name).fine


def guarded(module, name, statement, names):
    """A module that puts an import off, as a patched one does; its ``use`` returns a value."""
    text = "from deferred_hooks import put_off, do_import\n"
    text += f"put_off({statement!r}, {names!r}, globals())\n"
    return module(
        text + f"def use():\n    do_import({statement!r}, globals())\n    return {name}\n"
    )


@pytest.fixture
def hooks(monkeypatch):
    hooks = type(sys)("deferred_hooks")
    hooks.put_off, hooks.do_import = put_off, do_import
    monkeypatch.setitem(sys.modules, "deferred_hooks", hooks)


def test_an_import_comes_where_a_name_is_first_used(module, hooks):
    heavy = module("thing = object()\n")
    name = guarded(module, "renamed", f"from {heavy} import thing as renamed", ["renamed"])
    found = importlib.import_module(name)
    assert heavy not in sys.modules
    assert found.use() is sys.modules[heavy].thing
    assert found.use() is found.renamed


def test_another_module_may_ask_for_the_name(module, hooks):
    heavy = module("thing = object()\n")
    name = guarded(module, "thing", f"from {heavy} import thing", ["thing"])
    other = module(f"from {name} import thing\n")
    found = importlib.import_module(name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        found.nothing  # noqa: B018
    assert not hasattr(found, "__path__")
    assert heavy not in sys.modules
    assert importlib.import_module(other).thing is sys.modules[heavy].thing


def test_an_import_that_fails_fails_at_each_use(module, hooks):
    name = guarded(module, "thing", "from no_such_module import thing", ["thing"])
    found = importlib.import_module(name)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            found.use()


def test_threads_that_use_first_all_get_the_name(module, hooks):
    heavy = module("import time\ntime.sleep(0.05)\nthing = object()\n")
    name = guarded(module, "thing", f"from {heavy} import thing", ["thing"])
    use = importlib.import_module(name).use
    got, here = [], threading.Barrier(8)

    def call():
        here.wait()
        got.append(use())

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [sys.modules[heavy].thing] * 8


SPEC = """
apiVersion: cfac/v1
kind: StartupGraph
name: deferring
include: base.yaml
defer:
  - {decorator: fast, in: tinyengine.slow_import}
  - {call: change, in: tinyengine.slow_import, until: colorsys}
  - {import: tinyengine.heavy, in: tinyengine.slow_import}
"""
HEAVY = """
print("heavy", flush=True)
thing = 1
"""
SLOW_IMPORT = """
from .heavy import thing


def fast(function):
    print("compiled", function.__name__, flush=True)
    return function


def change():
    print("changed", flush=True)


@fast
def quick():
    print("quick", thing, flush=True)


change()
print("imported", flush=True)
"""
USE = """
import tinyengine.slow_import
tinyengine.slow_import.quick()
import colorsys
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A tiny engine that imports a slow module once its run has begun."""

    def prepare(tree):
        package = tree / "tinyengine"
        (package / "slow_import.py").write_text(SLOW_IMPORT)
        (package / "heavy.py").write_text(HEAVY)
        text = (package / "frontend.py").read_text()
        at = "        context = multiprocessing.get_context("
        assert text.count(at) == 1
        uses = "".join(f"        {line}\n" for line in USE.strip().splitlines())
        (package / "frontend.py").write_text(text.replace(at, uses + at))

    return tiny.patched_copy(tmp_path_factory.mktemp("engine") / "tree", SPEC, prepare)


def test_it_comes_at_its_first_use(engine, runs):
    result = tiny.run(engine, runs, "--workers", "1")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "imported\ncompiled quick\nheavy\nquick 1\nchanged\nserving\n6\n"


def test_a_recorded_start_defers_too(engine, runs):
    how = {"CFAC_OBSERVE": "1", "CFAC_RECORD": "imports"}
    result = tiny.run(engine, runs, "--workers", "1", **how)
    assert result.stdout == "imported\ncompiled quick\nheavy\nquick 1\nchanged\nserving\n6\n"


@pytest.mark.parametrize("how", [{"CFAC_DISABLE": "1"}, {"CFAC_OBSERVE": "1"}])
def test_the_order_is_stock_where_nothing_is_restructured(engine, runs, how):
    result = tiny.run(engine, runs, "--workers", "1", **how)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "heavy\ncompiled quick\nchanged\nimported\nquick 1\nserving\n6\n"


def test_an_unsupported_start_is_stock_from_its_config_on(engine, runs):
    result = tiny.run(engine, runs, "--workers", "1", "--experimental")
    assert result.stdout.startswith("heavy\ncompiled quick\nchanged\nimported\nquick 1\nserving\n")
