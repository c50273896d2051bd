"""Random edits of real Python files, in every layout that Python reads, onto a disk and back.

The checks share nothing with the edits: lines are split by a regular expression, trees are
compared after taking the inserted calls out again.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from codegen_support import relocated, unedited

from cfac.codegen.apply import apply, unapply
from cfac.codegen.edit import Edited, EditError, Insert, Wrap, edit
from cfac.codegen.patch import Change, render_patch
from cfac.codegen.places import definitions
from cfac.codegen.positions import Refused, entry, points
from cfac.codegen.source import Source, SourceError, from_bytes

_INSERTED = re.compile(rb"# cfac:(?:c\.S\d+:\w+|import)\Z")
_EOL = re.compile(rb"\r\n|\r|\n")
_MAX = 150_000  # bytes of a file


def corpus(*, installed: bool) -> list[Path]:
    """Every Python file of the standard library, and of what is ``installed``, in one order."""
    paths = sysconfig.get_paths()
    wanted = ("stdlib", "purelib", "platlib") if installed else ("stdlib",)
    folders = {Path(paths[name]).resolve() for name in wanted}
    found = {path for folder in folders for path in folder.rglob("*.py")}
    if not installed:
        found = {path for path in found if "site-packages" not in path.parts}
    return sorted(path for path in found if 0 < path.stat().st_size < _MAX)


# --- layouts ------------------------------------------------------------------------


def _coded(raw: bytes, encoding: str) -> bytes:
    """The file in another encoding, with its cookie on the first line."""
    text = raw.decode("utf-8")
    if "coding" in text[:200]:
        return raw
    return f"# -*- coding: {encoding} -*-\n{text}".encode(encoding)


def _form_feeds(raw: bytes) -> bytes:
    return re.sub(rb"(?m)^(?=(?:def|class) )", b"\f\n", raw)


def _tabs(raw: bytes) -> bytes:
    """Indentation by tabs, except where that changes what the file means."""
    made = re.sub(rb"(?m)^(?: {4})+", lambda m: b"\t" * (len(m[0]) // 4), raw)
    try:
        same = ast.dump(_parse(made)) == ast.dump(_parse(raw))
    except (SyntaxError, ValueError):
        same = False
    return made if same else raw


def _mixed(raw: bytes) -> bytes:
    lines = raw.split(b"\n")
    return (
        b"".join(line + (b"\r\n" if k % 3 else b"\n") for k, line in enumerate(lines[:-1]))
        + lines[-1]
    )


LAYOUTS = {
    "as it is": lambda raw: raw,
    "crlf": lambda raw: raw.replace(b"\n", b"\r\n"),
    "cr": lambda raw: raw.replace(b"\n", b"\r"),
    "mixed line ends": _mixed,
    "no final newline": lambda raw: raw.rstrip(b"\n"),
    "crlf, no final newline": lambda raw: raw.rstrip(b"\n").replace(b"\n", b"\r\n"),
    "blank lines and blanks at the end": lambda raw: raw + b"\n\n   \n\t\n",
    "comment at the end": lambda raw: raw.rstrip(b"\n") + b"\n# the end",
    "bom": lambda raw: b"\xef\xbb\xbf" + raw,
    "bom and crlf": lambda raw: b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n"),
    "tabs": _tabs,
    "form feeds": _form_feeds,
    "latin-1": lambda raw: _coded(raw, "latin-1"),
    "cp1252": lambda raw: _coded(raw, "cp1252"),
    "shift_jis": lambda raw: _coded(raw, "shift_jis"),
    "koi8-r": lambda raw: _coded(raw, "koi8-r"),
    "utf-8 with a cookie": lambda raw: _coded(raw, "utf-8"),
}


def laid_out(raw: bytes, layout: str) -> bytes | None:
    """The file in a layout; None if it cannot be written so."""
    raw = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    try:
        return LAYOUTS[layout](raw)
    except UnicodeError:
        return None


# --- edits --------------------------------------------------------------------------


def random_edit(source: Source, rng: random.Random) -> tuple[Edited, int, int]:
    """Some edits of a source; how many lines and callees they add."""
    scopes = [source.tree, *(node for _, node in definitions(source.tree))]
    nodes = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call | ast.Import | ast.ImportFrom | ast.Assign)
    ]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    inserts: list[Insert] = []
    wraps: list[Wrap] = []
    for k in range(10):
        scope = rng.choice(scopes)
        at = rng.choice(["entry", "exit", "before", "after", "around"])
        node = rng.choice(nodes) if nodes else None
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
    for node in rng.sample(calls, min(rng.choice([0, 3]), len(calls))):
        if not any(isinstance(above, ast.JoinedStr) for above, _, _ in source.ancestors(node)):
            wraps.append(Wrap(node.func, "c.W", len(wraps)))
    try:
        point = entry(source, source.tree)
    except Refused:
        pass
    else:
        inserts.append(Insert(point, "from x import _cfac", "cfac:import", "import", -1))
    return edit(source, inserts, wraps), len(inserts), len(wraps)


# --- checks -------------------------------------------------------------------------


def _parse(raw: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(raw)


def _parse_text(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _split(raw: bytes) -> list[bytes]:
    """Lines without their ends, and the ends themselves between them."""
    out: list[bytes] = []
    at = 0
    for match in _EOL.finditer(raw):
        out += [raw[at : match.start()], match[0]]
        at = match.end()
    return [*out, raw[at:]]


def check_edited(before: bytes, after: bytes, lines: int, wraps: int) -> None:
    """``after`` parses and is ``before`` with so many lines, and so many callees wrapped."""
    mark = b"\xef\xbb\xbf"
    assert before.startswith(mark) == after.startswith(mark)
    old, new = _split(before.removeprefix(mark)), _split(after.removeprefix(mark))
    kept: list[bytes] = []
    inserted = 0
    for k in range(0, len(new), 2):
        if _INSERTED.search(new[k]):
            inserted += 1
            if k + 1 == len(new):  # it is last, after the line that had no end
                kept.pop()
                kept.append(b"")
                kept = kept[:-1] or [b""]
            continue
        kept += new[k : k + 2]
    if len(kept) % 2 == 0:
        kept.append(b"")
        if old[-1]:  # the last line got an end: from the inserted one
            kept = kept[:-2]
    assert inserted == lines, f"{inserted} lines inserted, not {lines}"
    assert len(kept) == len(old), f"{len(old)} lines before, {len(kept)} kept"
    for a, b in zip(old, kept, strict=True):
        assert a == b or b"_cfac.replaced(" in b or (wraps and b"\n" not in b and b")" in b)
    taken = _TakeOut()
    tree = taken.visit(_parse(after))
    assert (taken.lines, taken.wraps) == (lines, wraps)
    assert ast.dump(tree) == ast.dump(_parse(before))


class _TakeOut(ast.NodeTransformer):
    """Takes the inserted statements and wrappers out of a tree."""

    def __init__(self) -> None:
        self.lines = self.wraps = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if re.match(r"_cfac\.\w+\('c\.S\d+'\)\Z", ast.unparse(node)[:40]):
            self.lines += 1
            return None
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        if node.module == "x" and node.names[0].name == "_cfac":
            self.lines += 1
            return None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        func = node.func
        if isinstance(func, ast.Call) and ast.unparse(func.func) == "_cfac.replaced":
            self.wraps += 1
            node.func = func.args[1]
        return node


# --- onto a disk and back -----------------------------------------------------------


@dataclass
class Fuzzed:
    """What was done: files by layout, edits, and files left out because no Python reads them."""

    layouts: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    wraps: int = 0
    unread: int = 0

    @property
    def files(self) -> int:
        return sum(self.layouts.values())


def edited_files(paths: Sequence[Path], rng: random.Random, done: Fuzzed) -> Iterator[Change]:
    """Each file in a random layout with random edits, checked."""
    for number, path in enumerate(paths):
        layout = rng.choice(list(LAYOUTS))
        warnings.simplefilter("ignore", SyntaxWarning)
        raw = laid_out(path.read_bytes(), layout)
        if raw is None:
            raw, layout = path.read_bytes(), "as it is"
        try:
            compile(raw, path.name, "exec", dont_inherit=True)
            source = from_bytes(raw, path.name)
        except (SourceError, SyntaxError, ValueError):
            done.unread += 1
            continue
        try:
            edited, lines, wraps = random_edit(source, rng)
            check_edited(raw, edited.data, lines, wraps)
        except (EditError, AssertionError) as error:
            raise AssertionError(f"{path} ({layout}): {error}") from error
        done.layouts[layout] += 1
        done.lines += lines
        done.wraps += wraps
        change = Change(f"fuzz/m{number}.py", raw, edited.splices)
        _check_hook(change, source, f"{path} ({layout})")
        yield change


def _check_hook(change: Change, source: Source, what: str) -> None:
    """What the hook compiles is the original tree, positions included, plus the edits."""
    original = _parse_text((change.before or b"").decode(source.encoding).removeprefix("\ufeff"))
    at_import = unedited(relocated(change))
    one, other = (ast.dump(tree, include_attributes=True) for tree in (at_import, original))
    assert one == other, what


def round_trip(changes: Sequence[Change], root: Path) -> bytes:
    """Write the files, apply their patch, take it out: each time the right bytes."""
    (root / "fuzz").mkdir(parents=True)
    (root / "fuzz/__init__.py").write_bytes(b"")
    for change in changes:
        (root / change.path).write_bytes(change.before or b"")
    before = _hashes(root)
    patch = render_patch("fuzz", "0" * 64, "fuzz", "1", "1", changes)
    assert len(apply(patch, root).changed) == sum(bool(c.splices) for c in changes)
    for change in changes:
        assert (root / change.path).read_bytes() == change.after, change.path
    assert apply(patch, root).changed == ()
    unapply(patch, root)
    assert _hashes(root) == before
    return patch


def _hashes(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
