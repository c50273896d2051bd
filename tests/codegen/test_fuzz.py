"""Random edits of the standard library: right, or refused with a reason."""

from __future__ import annotations

import ast
import random
import sysconfig
from pathlib import Path

import pytest
from codegen_support import relocated, unedited

from cfac.codegen.apply import FilePatch, patched
from cfac.codegen.edit import Edited, EditError, Insert, Wrap, edit
from cfac.codegen.lock import fingerprint
from cfac.codegen.patch import Change, render_patch, sha256
from cfac.codegen.places import DEFS, definitions
from cfac.codegen.positions import Refused, entry, points
from cfac.codegen.source import Source, SourceError, from_bytes

STDLIB = Path(sysconfig.get_paths()["stdlib"])
FILES = [
    path
    for folder in (STDLIB, STDLIB / "asyncio", STDLIB / "email", STDLIB / "test")
    for path in sorted(folder.glob("*.py"))
    if 500 < path.stat().st_size < 60_000 and not path.name.startswith("bad")
]
ENDS = [b"\n", b"\r\n", b"\r"]


def random_edit(source: Source, rng: random.Random) -> tuple[Edited, int, int]:
    """Some edits of a source; how many lines and callees they add."""
    scopes = [source.tree, *(node for _, node in definitions(source.tree))]
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    inserts: list[Insert] = []
    wraps: list[Wrap] = []
    for k in range(8):
        scope = rng.choice(scopes)
        at = rng.choice(["entry", "exit", "before", "after", "around"])
        node = rng.choice(calls) if calls else None
        if node is None and at not in ("entry", "exit"):
            continue
        try:
            found = points(source, scope, node, at)  # type: ignore[arg-type]
        except Refused as refused:
            assert refused.reason
            continue
        for _, point in found:
            kind = rng.choice(["publish", "wait", "begin"])
            code = f'_cfac.{kind}("c.S{k}")'
            inserts.append(Insert(point, code, f"cfac:c.S{k}:{kind}", kind, k))
    for node in rng.sample(calls, min(3, len(calls))):
        if not any(isinstance(above, ast.JoinedStr) for above, _, _ in source.ancestors(node)):
            wraps.append(Wrap(node.func, "c.W", len(wraps)))
    try:
        point = entry(source, source.tree)
    except Refused:
        pass
    else:
        inserts.append(Insert(point, "from x import _cfac", "cfac:import", "import", -1))
    return edit(source, inserts, wraps), len(inserts), len(wraps)


@pytest.mark.parametrize("seed", range(10))
def test_standard_library(seed: int) -> None:
    rng = random.Random(seed)
    done = 0
    for path in rng.sample(FILES, 15):
        raw = path.read_bytes()
        end = rng.choice(ENDS[:2])
        raw = raw.replace(b"\r\n", b"\n").replace(b"\n", end)
        if rng.random() < 0.3:
            raw = raw.rstrip(b"\r\n")
        if rng.random() < 0.2 and not raw.startswith(b"\xef") and b"coding" not in raw[:200]:
            raw = b"\xef\xbb\xbf" + raw
        try:
            source = from_bytes(raw, path.name)
        except SourceError:
            continue
        try:
            edited, lines, wraps = random_edit(source, rng)
        except EditError as error:
            raise AssertionError(f"{path}: {error}") from error
        ast.parse(edited.data)
        if not wraps:
            kept = [x for x in edited.data.split(b"\n") if b"# cfac:" not in x]
            assert b"\n".join(kept).rstrip(b"\r\n") == raw.rstrip(b"\r\n")
        assert edited.data.count(b"# cfac:") == lines + raw.count(b"# cfac:")
        assert edited.data.count(b"_cfac.replaced(") == wraps
        change = Change("x/a.py", raw, edited.splices)
        at_import = unedited(relocated(change))
        original = ast.parse(raw.decode(source.encoding).removeprefix("\ufeff"))
        assert ast.dump(at_import, include_attributes=True) == ast.dump(
            original, include_attributes=True
        )
        patch = render_patch("n", "0", "x", "1", "1", [change])
        file = FilePatch("x/a.py", sha256(raw), sha256(edited.data))
        from cfac.codegen import apply as applying

        applying._read_hunks(patch.partition(b"\n---\n")[2], {"x/a.py": file})
        assert patched(raw, file) == edited.data
        assert patched(edited.data, file, reverse=True) == raw
        done += 1
    assert done >= 10


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
