"""What starts keep for the next: compiled text, results of functions of a folder."""

import importlib
import os
import subprocess
import sys
import textwrap

import pytest
import tiny

from cfac.runtime.remember import ENVIRONMENT, Remembered

WORK = """
from __future__ import annotations

calls = []


def scan(top, deep=False):
    calls.append((str(top), deep))
    import os
    found = {frozenset({name}): {open(os.path.join(top, name)).read()}
             for name in sorted(os.listdir(top)) if name.endswith(".py")}
    return found


def again(top):
    calls.append(("again", str(top)))
    return {"again": again(top + "/..")} if not top.endswith("..") else {}


def installed(kind="all"):
    calls.append(kind)
    return {kind: len(calls)}


def odd(top):
    calls.append(("odd", str(top)))
    return object()
"""
MAKER = """
from __future__ import annotations

def make(text, names):
    exec(text, names)
    return names

def make_here(text):
    exec(text)
    return sorted(locals())
"""
ENTRIES = {
    "compiled": ["its_maker"],
    "results": [
        {"function": ["its_work", name], "files": ["*.py"], "below": "argument"}
        for name in ("scan", "again", "odd", "gone")
    ]
    + [{"function": ["its_work", "installed"], "files": ["*.info/NAME"], "below": "sys.path"}],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the two modules, importable, and a store of its own."""
    (tmp_path / "its_work.py").write_text(WORK)
    (tmp_path / "its_maker.py").write_text(MAKER)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.py").write_text("one")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "store"))
    yield tmp_path
    for name in ("its_work", "its_maker"):
        sys.modules.pop(name, None)


def start(component="core", keep=True, identity="one"):
    """A start: yields its modules imported anew, closes at its end."""
    for name in ("its_work", "its_maker"):
        sys.modules.pop(name, None)
    remembered = Remembered(ENTRIES, identity)
    remembered.open(component)
    work, maker = importlib.import_module("its_work"), importlib.import_module("its_maker")
    yield work, maker
    remembered.close(component, keep=keep)
    yield remembered.counts


def once(do, **options):
    """What ``do(work, maker)`` gives in a start, and the start's counts."""
    run = start(**options)
    result = do(*next(run))
    return result, next(run)


def scan(folder, **options):
    def do(work, _):
        result = work.scan(folder / "data", **options)
        return result, len(work.calls)

    return do


def test_a_result_is_kept_while_the_files_are_the_same(folder):
    expected = {frozenset({"a.py"}): {"one"}}
    assert once(scan(folder)) == ((expected, 1), {"used": 1, "new": 1})
    assert once(scan(folder)) == ((expected, 0), {"used": 1, "new": 0})
    (folder / "data" / "other.txt").write_text("of no account")
    assert once(scan(folder))[0] == (expected, 0)
    (folder / "data" / "a.py").write_text("three")
    assert once(scan(folder))[0] == ({frozenset({"a.py"}): {"three"}}, 1)
    os.utime(folder / "data" / "a.py", ns=(1, 1))
    assert once(scan(folder))[0][1] == 1
    (folder / "data" / "sub").mkdir()
    (folder / "data" / "sub" / "b.py").write_text("deep")
    assert once(scan(folder))[0][1] == 1
    assert once(scan(folder, deep=True))[0][1] == 1  # another argument
    (folder / "its_work.py").write_text(WORK + "\n")
    assert once(scan(folder, deep=True))[0][1] == 1  # another function


def test_a_result_may_depend_on_the_folders_of_sys_path(folder, monkeypatch):
    def computed(**options):
        return once(lambda work, _: (work.installed(**options), len(work.calls)))[0][1] == 1

    (folder / "one.info").mkdir()
    (folder / "one.info" / "NAME").write_text("1")
    assert computed()
    assert not computed()
    (folder / "one.info" / "OTHER").write_text("of no account")
    assert not computed()
    assert computed(kind="some")
    (folder / "one.info" / "NAME").write_text("22")
    assert computed()
    assert not computed()
    (folder / "two.info").mkdir()
    (folder / "two.info" / "NAME").write_text("2")
    assert computed()
    monkeypatch.syspath_prepend(folder / "data")
    assert computed()
    assert not computed()
    monkeypatch.syspath_prepend(folder / "archive.zip")
    assert computed()
    (folder / "archive.zip").write_bytes(b"none")
    assert computed()
    assert not computed()


def test_each_caller_has_a_result_of_its_own(folder):
    once(scan(folder))

    def do(work, _):
        first = work.scan(folder / "data")
        first.clear()
        return work.scan(folder / "data")

    assert once(do)[0] == {frozenset({"a.py"}): {"one"}}


def test_calls_of_itself_are_part_of_a_result(folder):
    def do(work, _):
        return work.again(str(folder / "data")), work.calls

    (result, calls), counts = once(do)
    assert result == {"again": {}}
    assert len(calls) == 2
    assert counts == {"used": 1, "new": 1}
    assert once(do)[0] == (result, [])


@pytest.mark.parametrize("path", [3.5, "nowhere/at/all"])
def test_what_is_no_path_is_left_to_the_function(folder, path):
    def do(work, _):
        with pytest.raises((TypeError, OSError)):
            work.scan(path)

    assert once(do)[1] == {"used": 0, "new": 0}


def test_a_result_that_is_no_data_is_not_kept(folder):
    for _ in range(2):
        result, counts = once(lambda work, _: type(work.odd(str(folder / "data"))))
        assert result is object
        assert counts["new"] == 0


def test_text_is_compiled_once(folder, monkeypatch):
    compiled = []

    def spy(source, *rest, **options):
        compiled.append(source)
        return compile(source, *rest, **options)

    monkeypatch.setattr("cfac.runtime.remember.compile", spy, raising=False)
    text = textwrap.dedent(
        """
        def f(x: nothing_of_the_sort, y=2):
            return x * y
        try:
            raise ValueError
        except ValueError as error:
            line = error.__traceback__.tb_lineno
        """
    )

    def do(_, maker):
        names = maker.make(text, {})
        code = names["f"].__code__
        return names["f"](4), names["line"], code.co_filename, names["f"].__annotations__

    expected = (8, 5, "<string>", {"x": "nothing_of_the_sort"})  # annotations are the maker's
    for _ in range(2):
        assert once(do)[0] == expected
    assert compiled == [text]
    assert once(lambda _, maker: maker.make_here("z = 1"))[0] == ["text", "z"]


def test_an_error_in_the_text_is_the_same(folder):
    def do(_, maker):
        with pytest.raises(SyntaxError) as raised:
            maker.make("a b", {})
        with pytest.raises(ZeroDivisionError):
            maker.make("1 / 0", {})
        return raised.value.filename, raised.value.lineno, raised.value.text

    with pytest.raises(SyntaxError) as raised:
        exec("a b")
    own = raised.value
    assert once(do)[0] == (own.filename, own.lineno, own.text)


def test_the_originals_are_back_at_the_end(folder):
    run = start()
    work, maker = next(run)
    assert "exec" in vars(maker)
    assert work.scan.__wrapped__.__name__ == "scan"
    next(run)
    assert "exec" not in vars(maker)
    assert not hasattr(work.scan, "__wrapped__")
    sys.modules.pop("its_work")  # imported later, too
    remembered = Remembered(ENTRIES, "one")
    remembered.open("core")
    remembered.close("core", keep=False)
    assert not hasattr(importlib.import_module("its_work").scan, "__wrapped__")


def test_modules_that_are_there_already_are_exchanged_too(folder):
    work, maker = importlib.import_module("its_work"), importlib.import_module("its_maker")
    remembered = Remembered(ENTRIES, "one")
    remembered.open("core")
    assert "exec" in vars(maker)
    assert hasattr(work.scan, "__wrapped__")
    remembered.close("core", keep=False)
    assert "exec" not in vars(maker)


def test_a_module_with_an_exec_of_its_own_keeps_it(folder):
    (folder / "its_maker.py").write_text("def exec(*_): return 'own'\ndef make(): return exec('1')")
    assert once(lambda _, maker: maker.make())[0] == "own"


@pytest.mark.parametrize("other", [{"component": "worker"}, {"identity": "two"}])
def test_components_and_engines_have_stores_of_their_own(folder, other):
    once(scan(folder))
    assert once(scan(folder), **other)[0][1] == 1
    assert len(list((folder / "store").iterdir())) == 2


def test_what_a_start_did_not_use_is_forgotten(folder):
    once(scan(folder))
    once(lambda work, _: work.again(str(folder / "data")))
    assert once(scan(folder))[0][1] == 1


def test_nothing_new_is_not_written(folder):
    once(scan(folder))
    (store,) = (folder / "store").iterdir()
    before = store.stat()
    once(scan(folder))
    assert store.stat().st_ino == before.st_ino
    assert once(scan(folder, deep=True), keep=False)[1]["new"] == 1
    assert store.stat().st_ino == before.st_ino


def damage(store):
    content = bytearray(store.read_bytes())
    content[len(content) // 2] ^= 1
    store.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        damage,
        lambda store: store.write_bytes(b""),
        lambda store: store.write_bytes(store.read_bytes()[:-1]),
        lambda store: store.chmod(0o666),
        lambda store: os.chown(store, 1, 1),
        lambda store: store.rename(store.parent.parent / "s") and store.symlink_to("../s"),
        lambda store: store.unlink() or store.mkdir(),
    ],
    ids=["bit", "empty", "short", "writable", "foreign", "link", "folder"],
)
def test_a_store_that_cannot_be_trusted_is_not_read(folder, spoil, request):
    if request.node.callspec.id == "foreign" and os.geteuid() != 0:
        pytest.skip("only root may give files away")
    once(scan(folder))
    (store,) = (folder / "store").iterdir()
    spoil(store)
    remembered = Remembered(ENTRIES, "one")
    remembered.open("core")
    assert importlib.import_module("its_work").scan(folder / "data")
    assert remembered.counts == {"used": 1, "new": 1}
    remembered.close("core", keep=False)


def test_a_store_that_cannot_be_written_is_an_os_error(folder):
    (folder / "store").mkdir()
    (folder / "store").chmod(0o777)
    with pytest.raises(PermissionError, match="may be written by others"):
        once(scan(folder))


def test_a_user_with_a_home_made_unknown_remembers_nothing(folder, monkeypatch):
    def unknown(_):
        raise KeyError

    for name in (ENVIRONMENT, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(OSError, match=ENVIRONMENT):
        once(scan(folder))


SPEC = """\
apiVersion: cfac/v1
kind: StartupGraph
name: tiny-remembers
include: base.yaml
remember:
  - {compiled: dataclasses}
  - {result: tinyengine.names.scan, files: "*.py"}
"""
NAMES = """
import dataclasses
import os

HERE = os.path.dirname(__file__)


def scan(top):
    print("scanned", flush=True)
    return sorted(name for name in os.listdir(top) if name.endswith(".py"))


@dataclasses.dataclass(order=True)
class Pair:
    a: int = 1
    b: "list[int]" = dataclasses.field(default_factory=list)
"""
USE = """\
import tinyengine.names as names
print(names.Pair(2), names.Pair(1) < names.Pair(2), len(names.scan(names.HERE)), flush=True)
"""


def scanning(folder, spec):
    """A tiny engine that scans its own folder, and has a dataclass."""

    def prepare(tree):
        package = tree / "tinyengine"
        (package / "names.py").write_text(NAMES)
        text = (package / "frontend.py").read_text()
        at = "        context = multiprocessing.get_context("
        assert text.count(at) == 1
        (package / "frontend.py").write_text(text.replace(at, textwrap.indent(USE, " " * 8) + at))

    return tiny.patched_copy(folder / "tree", spec, prepare)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return scanning(tmp_path_factory.mktemp("engine"), SPEC)


def remembered(runs):
    """The newest run's event of its frontend, by itself."""
    folder = max(tiny.run_folders(runs), key=lambda f: f.stat().st_mtime_ns)
    events = [e for e in tiny.read_run(folder).events if e["e"] == "remembered"]
    return [(e["used"] > 1, e["new"] > 0) for e in events if e["c"] == "frontend"]


def test_the_next_start_of_an_engine_is_spared_the_work(engine, runs, tmp_path):
    store = {ENVIRONMENT: str(tmp_path / "store")}
    pair = "Pair(a=2, b=[]) True "
    first = tiny.run(engine, runs, "--workers", "1", **store)
    assert first.stdout.startswith(f"scanned\n{pair}"), first.stderr
    assert remembered(runs) == [(True, True)]
    second = tiny.run(engine, runs, "--workers", "1", **store)
    assert second.stdout == first.stdout.removeprefix("scanned\n")
    assert remembered(runs) == [(True, False)]
    for off in ("CFAC_DISABLE", "CFAC_OBSERVE"):
        stock = tiny.run(engine, runs, "--workers", "1", **store, **{off: "1"})
        assert stock.stdout == first.stdout


PROGRAM = """\
params: {program: {type: bool, default: false, from: [{program: [tiny, go]}]}}
"""
SCRIPT = """\
import sys
from tinyengine.frontend import Engine
if __name__ == "__main__":
    engine = Engine(1)
    print(engine.add([4]))
    engine.close()
"""


def test_a_process_that_is_not_the_engines_is_left_alone(tmp_path):
    """A script's or a notebook's: where the spec names programs, and this is none of them."""
    engine = scanning(tmp_path, SPEC + PROGRAM)
    (engine / "tiny").write_text(SCRIPT)
    store = {ENVIRONMENT: str(tmp_path / "store")}
    for word, times, expected in (("stay", 2, []), ("go", 1, [(True, True)])):
        for number in range(times):
            runs = tmp_path / f"{word}{number}"
            done = subprocess.run(
                [sys.executable, str(engine / "tiny"), word],
                cwd=engine,
                env=tiny.environment(runs, **store),
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.stdout.startswith("scanned\n"), done.stderr
            assert done.stdout.endswith("4\n")
            assert remembered(runs) == expected


def test_a_folder_that_cannot_be_made_costs_one_line(engine, runs, tmp_path):
    (tmp_path / "file").write_text("")
    store = {ENVIRONMENT: str(tmp_path / "file" / "store")}
    result = tiny.run(engine, runs, "--workers", "1", **store)
    assert result.returncode == 0
    assert result.stderr.count("this start is not remembered") >= 1
    assert "scanned" in result.stdout
