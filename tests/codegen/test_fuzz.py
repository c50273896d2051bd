"""Random edits of real files: right, or refused with a reason."""

from __future__ import annotations

import ast
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from codegen_support import git
from fuzz_support import LAYOUTS, Fuzzed, check_edited, corpus, edited_files, round_trip

from cfac.codegen.edit import Insert, Wrap, edit
from cfac.codegen.lock import fingerprint
from cfac.codegen.places import DEFS
from cfac.codegen.positions import points
from cfac.codegen.source import SourceError, from_bytes


def fuzz(count: int, seed: int, folder: Path, *, installed: bool) -> Fuzzed:
    """``count`` files in batches; each batch is one patch, which git takes as well."""
    rng = random.Random(seed)
    known = corpus(installed=installed)
    paths = rng.sample(known, min(len(known), count + count // 4))
    done = Fuzzed()
    for k in range(0, len(paths), 50):
        if done.files >= count:
            break
        changes = list(edited_files(paths[k : k + 50], rng, done))
        root = folder / str(k)
        patch = round_trip(changes, root)
        if k % 200 == 0:
            (root / "fuzz.patch").write_bytes(patch)
            git(root, "apply", "--whitespace=nowarn", "fuzz.patch")
            for change in changes:
                assert (root / change.path).read_bytes() == change.after, change.path
        shutil.rmtree(root)
    return done


def test_real_files(tmp_path: Path) -> None:
    """Of the standard library only: what else is installed may be of any version."""
    done = fuzz(120, 1, tmp_path, installed=False)
    assert done.files >= 120
    assert len(done.layouts) >= len(LAYOUTS) - 1
    assert done.lines > 1000 and done.wraps > 100


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_thousand_real_files(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    done = fuzz(2000, 2, tmp_path, installed=True)
    print(done)
    record_property("fuzzed", asdict(done) | {"layouts": dict(done.layouts)})  # asdict breaks it
    assert done.files >= 2000
    assert set(done.layouts) == set(LAYOUTS)
    assert done.lines > 10_000 and done.wraps > 1000


EDITED = b'# cfac\nf(1)\n_cfac.publish("c.S1")  # cfac:c.S1:publish\ng()'
STOCK = b"# cfac\nf(1)\ng()"


def test_the_check_takes_what_is_right() -> None:
    check_edited(STOCK, EDITED, 1, 0)
    check_edited(b"f(1)", b"f(1)\n_cfac.wait('c.S1')  # cfac:c.S1:wait", 1, 0)
    check_edited(b"f(1)\n", b"f(1)\n_cfac.wait('c.S1')  # cfac:c.S1:wait\n", 1, 0)
    check_edited(STOCK, EDITED.replace(b"g()", b'_cfac.replaced("c.W", g)()'), 1, 1)


@pytest.mark.parametrize(
    "old, new",
    [
        (b"f(1)", b"f(2)"),
        (b"# cfac\n", b"#  cfac\n"),
        (b"f(1)\n", b"f(1)\r\n"),
        (b"g()", b"g()\n"),
        (b"g()", b""),
        (b"f(1)\n", b"f(1)\n\n"),
        (b"c.S1:publish\n", b"c.S1:publish\n_cfac.publish('c.S2')  # cfac:c.S2:publish\n"),
        (b"g()", b'_cfac.replaced("c.W", g)()'),
    ],
)
def test_the_check_finds_what_is_wrong(old: bytes, new: bytes) -> None:
    assert old in EDITED
    with pytest.raises((AssertionError, SyntaxError)):
        check_edited(STOCK, EDITED.replace(old, new, 1), 1, 0)


def test_fingerprint_ignores_layout() -> None:
    one = from_bytes(b"def f(a):\n    return (a)  # x\n").tree.body[0]
    two = from_bytes(b"# y\n\ndef f( a ) :\n\treturn a\n").tree.body[0]
    other = from_bytes(b"def f(a):\n    return -a\n").tree.body[0]
    assert fingerprint(one) == fingerprint(two) != fingerprint(other)


def test_fingerprint_of_a_module_is_what_runs_at_import() -> None:
    one = from_bytes(b"import a\ndef f():\n    return 1\n").tree
    two = from_bytes(b"import a\ndef f():\n    return 2\n").tree
    other = from_bytes(b"import b\ndef f():\n    return 1\n").tree
    assert fingerprint(one) == fingerprint(two) != fingerprint(other)
    assert DEFS


@pytest.mark.parametrize(
    "raw",
    [
        b"x = 1\0\n",
        b"# -*- coding: nothing -*-\n",
        b"\xff\n",
        b"\xef\xbb\xbf# -*- coding: latin-1 -*-\nx = 1\n",
        b"def f(:\n",
        b"(" * 500,
    ],
)
def test_not_python(raw: bytes) -> None:
    with pytest.raises(SourceError):
        from_bytes(raw)


@pytest.mark.parametrize(
    "encoding", ["shift_jis", "euc_jp", "iso2022_jp", "gbk", "utf-8", "cp1251"]
)
def test_encodings(encoding: str) -> None:
    text = f"# -*- coding: {encoding} -*-\ndef f():\n    s = '表ソ'; work()\n    return s\n"
    raw = text.replace("表ソ", "жы" if encoding == "cp1251" else "表ソ").encode(encoding)
    source = from_bytes(raw)
    scope = source.tree.body[0]
    assert isinstance(scope, ast.FunctionDef)
    call = next(node for node in ast.walk(scope) if isinstance(node, ast.Call))
    [(_, point)] = points(source, scope, call, "after")
    insert = Insert(point, "_cfac.publish('a')", "cfac:a:publish", "publish", 0)
    edited = edit(source, [insert], [Wrap(call.func, "b", 1)])
    lines = edited.data.split(b"\n")
    assert lines[3] == b"    _cfac.publish('a')  # cfac:a:publish"
    assert b'_cfac.replaced("b", work)()' in lines[2]
    assert [line for k, line in enumerate(lines) if k not in (2, 3)] == [
        line for k, line in enumerate(raw.split(b"\n")) if k != 2
    ]
