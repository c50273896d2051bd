"""The import hook: where its lines are said to be, and what it does to an interpreter."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import traceback
import venv
import zipfile
from pathlib import Path

import pytest
from codegen_support import CASES, SPEC, compile_case, files, make_engine, relocated, unedited
from test_golden import FINE, golden

from cfac.codegen.hook import build_hook, module_of
from cfac.runtime.hook.relocate import compile_edited

PIP = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "--python"]
RAISING = '''\
"""A module whose functions raise, below, in and above what is inserted."""

import os


def work(text="é"):
    raise ValueError(
        text
    )


def first(n):
    if n:
        return work()
    work("b"); work("c")


def second():
    try:
        first(
            1,
        )
    finally:
        os.getpid()


@repr
def third():
    pass


class Fourth:
    def run(self):
        return f"""{len(work)}""" + work()


def tell():
    import traceback
    for call in (lambda: first(1), lambda: first(0), second, Fourth().run):
        try:
            call()
        except Exception:
            traceback.print_exc()
'''
RAISING_SPEC = (
    SPEC.partition("bind:")[0].replace("[Start, Ready]", "[Start, A, B, C, Ready]")
    + """bind:
  core.A: {publish: {in: "tiny.main:first", at: entry}}
  core.B: {publish: {in: "tiny.main:second", at: around, call: first}}
  core.C: {publish: {in: "tiny.main:first", at: replace_callee, call: work, nth: 1}}
  core.Ready: {publish: {in: "tiny.main:Fourth.run", at: entry}}
"""
)


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.mark.parametrize("name", FINE)
def test_every_line_is_the_originals(name: str, update: bool) -> None:
    """Without what is inserted, the tree is the original's, every position included."""
    result, text = compile_case(CASES / name)
    assert result is not None and result.ok, text
    shown = []
    for change in result.changes:
        if change.before is None:
            continue
        tree = relocated(change)
        code = compile(tree, change.path, "exec")
        assert code.co_filename == change.path
        inserted: list[ast.AST] = []
        found = ast.dump(unedited(tree, inserted), include_attributes=True)
        assert found == ast.dump(ast.parse(change.before), include_attributes=True)
        places = sorted((node.lineno, ast.unparse(node)) for node in inserted)  # type: ignore[attr-defined]
        shown += [f"{change.path}:{line}: {text}" for line, text in places]
    golden(CASES / name / "expected.hook", ("\n".join(shown) + "\n").encode(), update)


def test_equal_input_gives_an_equal_wheel() -> None:
    wheels = []
    for _ in range(2):
        result, _ = compile_case(CASES / "multiline")
        assert result is not None
        wheels.append(build_hook("a-b.c", "0" * 64, "tiny", "1.2", result.changes))
    assert wheels[0] == wheels[1]
    name, data = wheels[0]
    assert name.startswith("cfac_hook_a_b_c-") and name.endswith("-py3-none-any.whl")
    other, _ = build_hook("a-b.c", "1" * 64, "tiny", "1.2", result.changes)
    assert other != name, "pip would not install it over the other one"
    assert b"cfac_hook_a_b_c.pth" in data


def test_names_of_modules() -> None:
    assert module_of("tiny/__init__.py") == "tiny"
    assert module_of("tiny/a/b.py") == "tiny.a.b"


class Environment:
    """A virtual environment with the engine ``tiny`` and, once installed, hooks for it."""

    def __init__(self, folder: Path, main: str = RAISING, spec: str = RAISING_SPEC) -> None:
        self.folder = folder
        venv.create(folder / "venv", symlinks=True)
        self.python = folder / "venv" / "bin" / "python"
        (self.site,) = (folder / "venv").glob("lib/python3*/site-packages")
        make_engine(self.site, main)
        self.spec = spec
        self.wheel = self.compile()

    def compile(self, spec: str | None = None, name: str = "tiny-start") -> Path:
        (self.folder / "spec.yaml").write_text(spec or self.spec)
        result, text = compile_case(self.folder, str(self.site))
        assert result is not None and result.ok, text
        file, data = build_hook(name, "0" * 64, "tiny", "1.2.0", result.changes)
        (self.folder / file).write_bytes(data)
        return self.folder / file

    def install(self, wheel: Path | None = None) -> Environment:
        command = [*PIP, str(self.python), "install", "--no-deps", "--no-index"]
        subprocess.run([*command, str(wheel or self.wheel)], check=True)
        return self

    def run(self, program: str, *options: str, hook: str = "1", **extra: str) -> tuple[str, str]:
        """Output and errors of a Python program, which must end well."""
        arguments = [program] if program.endswith(".py") else ["-c", program]
        hidden = ("CFAC_", "PYTHON")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        environment |= {"CFAC_HOOK": hook, "CFAC_RUNS": str(self.folder / "runs")} | extra
        done = subprocess.run(
            [str(self.python), *options, *arguments],
            env={k: v for k, v in environment.items() if v},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the hook installed; tests must not change it."""
    return Environment(tmp_path_factory.mktemp("shared")).install()


@pytest.fixture
def own(tmp_path: Path) -> Environment:
    return Environment(tmp_path).install()


ACTIVE = "cfac: hook tiny-start is active: 1 modules of tiny 1.2.0"
OFF = "cfac: hook tiny-start is off, the engine starts as stock: "
IS_ON = """
import sys
print(any(hasattr(f, "cfac_hook") for f in sys.meta_path), any("cfac" in m for m in sys.modules))
import tiny.main
print(hasattr(tiny.main, "_cfac"))
"""
ON, STOCK = "True True\nTrue\n", "False False\nFalse\n"


def test_tracebacks_are_those_of_the_stock_engine(shared: Environment) -> None:
    program = """
import tiny.main as main
calls = getattr(main, "_cfac", None)
if calls:  # whose own call would be in between
    calls.replaced = lambda name, callee: callee
main.tell()
"""
    _, stock = shared.run(program, hook="")
    assert stock.count("Traceback") == 4 and stock.count("^^^") >= 4
    _, hooked = shared.run(program, CFAC_RUN="off")  # no run: only the lines are looked at
    assert hooked == stock
    _, compiled = shared.run(program, "-O", CFAC_RUN="off")
    assert compiled == stock


def test_source_and_debuggers_see_the_file_on_the_disk(shared: Environment) -> None:
    program = """
import inspect, dis, tiny.main as m
print([inspect.getsource(f) for f in (m.work, m.first, m.second, m.Fourth)])
print(m.first.__code__.co_filename == m.__file__ == inspect.getsourcefile(m), m.__cached__)
lines = [line for f in (m.first, m.second) for _, line in dis.findlinestarts(f.__code__)]
print(sorted(set(lines)), m.__loader__.get_source("tiny.main") == open(m.__file__).read())
"""
    assert shared.run(program)[0] == shared.run(program, hook="")[0]


def test_the_edits_are_there(shared: Environment) -> None:
    program = """
import tiny.main
calls = tiny.main._cfac
for name in ("publish", "begin"):
    setattr(calls, name, lambda *a, name=name: print(name, *a))
calls.replaced = lambda name, callee: print("replaced", name) or callee
tiny.main.work = lambda *a: "done"
print(tiny.main.first(1)); tiny.main.second()
"""
    out, err = shared.run(program)
    assert out.startswith("publish core.A\nreplaced core.C\n"), out
    assert err == ACTIVE + "\n"
    assert out.count("core.B") == 2
    assert shared.run(program, "-O")[0] == out


@pytest.mark.parametrize(
    ("hook", "options", "extra", "expected"),
    [
        ("1", (), {}, ON),
        ("tiny-start", (), {}, ON),
        ("a, tiny-start", ("-I",), {}, ON),
        ("1", ("-E", "-s"), {}, ON),
        ("", (), {}, STOCK),
        ("0", (), {}, STOCK),
        ("1", (), {"CFAC_DISABLE": "1"}, STOCK),
        ("1", (), {"CFAC_DISABLE": "0"}, ON),
    ],
)
def test_the_gate(shared, hook, options, extra, expected) -> None:
    out, err = shared.run(IS_ON, *options, hook=hook, **extra)
    assert (out, err) == (expected, ACTIVE + "\n" if expected is ON else "")


def test_another_hook_is_not_asked_for(shared: Environment) -> None:
    out, err = shared.run(IS_ON, hook="another")
    assert (out, err) == ("False True\nFalse\n", "")


def test_without_site_there_is_no_hook(shared: Environment) -> None:
    out, err = shared.run(
        IS_ON.replace("import sys", f"import sys; sys.path.append({str(shared.site)!r})"), "-S"
    )
    assert (out, err) == (STOCK, "")


def test_other_programs_of_the_environment_see_nothing(shared: Environment) -> None:
    program = "import sys; print(sorted(m for m in sys.modules if 'cfac' in m or m == 'json'))"
    out, err = shared.run(program)
    assert (out, err) == ("['cfac_hook_tiny_start', 'cfac_hook_tiny_start.finder']\n", "")
    find = "import importlib.util as u; print(u.find_spec('tiny').loader.__class__.__name__)"
    assert shared.run(find) == ("SourceFileLoader\n", "")
    assert shared.run("import tiny; print(tiny.__version__)") == ("1.2.0\n", "")


def test_spawned_and_forked_children_have_the_edits_too(own: Environment) -> None:
    program = """
import multiprocessing, sys
def look(queue):
    import tiny.main
    queue.put((hasattr(tiny.main, "_cfac"), type(tiny.main.__loader__).__name__))
if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=look, args=(queue,)); child.start()
        print(method, queue.get()); child.join()
    import tiny.main
"""
    (own.folder / "program.py").write_text(program)
    out, err = own.run("program.py")
    assert out.count("(True, 'EditedLoader')") == 3
    assert err == ACTIVE + "\n"


def test_a_changed_engine_starts_as_stock(own: Environment) -> None:
    main = own.site / "tiny" / "main.py"
    main.write_text(main.read_text() + "\n")
    out, err = own.run(IS_ON)
    assert out.endswith("False\n")
    assert err.startswith(OFF + "not the files it was compiled for (tiny 1.2.0) in ")
    assert err.endswith(": tiny/main.py (differs)\n") and len(err.splitlines()) == 1
    main.unlink()
    out, err = own.run(
        "import tiny\ntry:\n    import tiny.main\nexcept ImportError: print('as stock')"
    )
    assert out == "as stock\n"
    assert "No such file" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("damage", ["hook.json", "finder.py", "edits.py"])
def test_a_damaged_hook_costs_one_line(own: Environment, damage: str) -> None:
    (own.site / "cfac_hook_tiny_start" / damage).write_text("{")
    out, err = own.run(IS_ON)
    assert out.endswith("False\n")
    assert len(err.splitlines()) == 1 and err.startswith("cfac: hook tiny-start is off")


def test_damaged_bytecode_is_made_again(own: Environment) -> None:
    (own.site / "cfac_hook_tiny_start" / "code" / "0.bin").write_bytes(b"x")
    assert own.run(IS_ON) == (ON, ACTIVE + "\n")


def test_another_python_compiles_at_each_start_and_says_so(own: Environment) -> None:
    manifest = own.site / "cfac_hook_tiny_start" / "hook.json"
    data = json.loads(manifest.read_text())
    data["python"] = {"magic": "00000000", "tag": "cpython-300"}
    manifest.write_text(json.dumps(data))
    out, err = own.run(IS_ON)
    assert out == ON
    assert err == f"{ACTIVE}, compiled at each start (bytecode is for cpython-300)\n"


def test_two_hooks_of_one_engine_must_be_told_apart(own: Environment) -> None:
    own.install(own.compile(SPEC.replace("run", "second").replace("work", "first"), "other"))
    out, err = own.run(IS_ON)
    assert out.endswith("False\n")
    assert len(err.splitlines()) == 1
    assert "the hooks other and tiny-start are both for tiny" in err
    out, err = own.run(IS_ON, hook="other")
    assert (out, err) == (ON, ACTIVE.replace("tiny-start", "other") + "\n")


FOREIGN = """
import importlib.util, sys
class Wrapped:
    def __init__(self, inner): self.inner = inner
    def create_module(self, spec): return self.inner.create_module(spec)
    def exec_module(self, module):
        self.inner.exec_module(module)
        print("after", module.__name__)
class Foreign:
    busy = set()
    def find_spec(self, name, path=None, target=None):
        if name != "tiny.main" or name in self.busy: return None
        self.busy.add(name)
        spec = importlib.util.find_spec(name)
        self.busy.discard(name)
        spec.loader = Wrapped(spec.loader)
        return spec
"""


@pytest.mark.parametrize("place", ["0", "1"])
def test_a_hook_that_wraps_what_is_found_works_before_and_behind(shared, place) -> None:
    program = FOREIGN + f"sys.meta_path.insert({place}, Foreign())\n" + IS_ON
    out, err = shared.run(program)
    assert out == "True True\nafter tiny.main\nTrue\n"
    assert err == ACTIVE + "\n"


def test_a_hook_that_loads_the_module_by_itself_turns_this_one_off(shared) -> None:
    program = FOREIGN.replace(
        "importlib.util.find_spec(name)", "sys.meta_path[-1].find_spec(name, path)"
    )
    out, err = shared.run(program + "sys.meta_path.insert(1, Foreign())\n" + IS_ON)
    assert out.endswith("after tiny.main\nFalse\n")
    assert err == f"{OFF}tiny.main: its loader is Wrapped\n"


def test_an_editable_engine(own: Environment, tmp_path: Path) -> None:
    """Found by a path in a .pth file, and by a finder behind the path's own."""
    (own.site / "tiny").rename(tmp_path / "tiny")
    (own.site / "tiny.pth").write_text(f"{tmp_path}\n")
    assert own.run(IS_ON, "-P") == (ON, ACTIVE + "\n")
    (own.site / "tiny.pth").unlink()
    finder = f"""
import sys, importlib.util
class Editable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "tiny":
            folder = {str(tmp_path / "tiny")!r}
            return importlib.util.spec_from_file_location(
                name, folder + "/__init__.py", submodule_search_locations=[folder])
sys.meta_path.append(Editable)
"""
    assert own.run(finder + IS_ON, "-P") == (ON, ACTIVE + "\n")


def test_an_engine_in_a_zip_file_starts_as_stock(own: Environment) -> None:
    archive = own.folder / "tiny.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for path, data in files(own.site).items():
            if path.startswith("tiny/"):
                out.writestr(path, data)
    program = f"import sys; sys.path.insert(0, {str(archive)!r})\n" + IS_ON
    text, err = own.run(program)
    assert text.endswith("False\n")
    assert len(err.splitlines()) == 1 and "Not a directory" in err


def test_bundled_runtime_gives_way_to_an_installed_one(own: Environment) -> None:
    program = "import tiny.main, cfac.runtime.boot as b, cfac; print(b.__file__, cfac.__version__)"
    out, _ = own.run(program)
    assert "/cfac_hook_tiny_start/lib/cfac/runtime/boot.py" in out
    alone = "try:\n    import cfac\nexcept ImportError: print('not for other programs')"
    assert own.run(alone)[0] == "not for other programs\n"
    (own.folder / "cfac").mkdir()  # a folder that merely has the name
    assert "cfac_hook_tiny_start/lib" in own.run(program)[0]
    (own.site / "cfac").mkdir()
    (own.site / "cfac" / "__init__.py").write_text("x = 1\n")
    assert own.run("import cfac, tiny.main; print(cfac.x)")[0] == "1\n"


def test_installed_and_uninstalled_leaves_nothing(tmp_path: Path) -> None:
    environment = Environment(tmp_path)

    def everything() -> list[str]:
        return sorted(str(path) for path in environment.site.rglob("*"))

    environment.run("import tiny.main", hook="")
    before, data = everything(), files(environment.site)
    environment.install()
    environment.run("import tiny.main; tiny.main._cfac")
    newer = environment.compile(RAISING_SPEC.replace("nth: 1", "nth: 2"))
    assert newer != environment.wheel
    environment.install(newer)  # in its place
    (installed,) = environment.site.glob("cfac_hook_tiny_start-*.dist-info")
    assert installed.name.removesuffix(".dist-info") in newer.name
    command = [*PIP, str(environment.python), "uninstall", "--yes", "cfac-hook-tiny-start"]
    subprocess.run(command, check=True, capture_output=True)
    assert everything() == before
    assert files(environment.site) == data


def test_pip_itself_is_not_disturbed(shared: Environment) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(shared.python), "list"]
    environment = os.environ | {"CFAC_HOOK": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "cfac-hook-tiny-start" in done.stdout
    assert done.stderr == ""


def test_an_error_in_inserted_code_is_on_its_neighbours_line() -> None:
    raw = b"def f():\n    a = 1\n\n    # why\n    return a\n\n\ndef g():\n    pass\n"
    offset = raw.index(b"\n    # why")
    for at, line in ((offset, 5), (raw.index(b"\n\ndef g"), 5)):
        code = compile_edited(raw, [(at, b"    1 / 0  # cfac:x\n")], 0, "utf-8", "a.py")
        names: dict[str, object] = {}
        exec(code, names)
        try:
            names["f"]()  # type: ignore[operator]
        except ZeroDivisionError as error:
            assert traceback.extract_tb(error.__traceback__)[-1].lineno == line
