"""One anchor on one real engine file, with its true position planted, and the judge.

The truth is where the compiler puts an anchor in the unchanged engine: the patch that real
starts verify (test_process_tree and others).  There a statement ``PLANTED_n()`` is planted
(for a wrapped callee, a keyword).  A mutation carries it along with what it belongs to.
After compiling the mutated file, every insertion must stand right beside a planted
statement, in the same block, and every planted statement must have one; the judge knows
nothing of how the compiler found its place.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cfac.codegen.anchors import Tree, resolve
from cfac.codegen.apply import parse_patch, patched
from cfac.codegen.compile import compile_engine
from cfac.codegen.engine import Engine
from cfac.codegen.places import find_scopes
from cfac.codegen.sites import applicable
from cfac.codegen.source import from_bytes
from cfac.compiler.api import load
from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.model import PROCESS_KINDS, Binding, Component, Site, Spec

MARK = "PLANTED_9"
_INSERTED = re.compile(r"^([ \t]*)_cfac\.\w+\(.*#[ ]cfac:(?!import).*$", re.M)
_IMPORT = re.compile(r"^.*# cfac:import\r?\n", re.M)
_WRAP = re.compile(r"_cfac\.(?:replaced|start|context)\(\"[^\"]*\", ")


@dataclass(frozen=True)
class Anchor:
    """One site of a shipped spec, alone in a spec of its own."""

    name: str
    site: Site
    spec: Spec


@dataclass
class Case:
    """A planted file, parsed afresh, and where the anchor is in it."""

    anchor: Anchor
    text: str
    tree: ast.Module
    scope: ast.AST  # the function, or the module
    path: list[ast.AST]  # from the module down to the scope's parent
    call: ast.AST | None = None  # the anchor's call, import or assignment
    statement: ast.stmt | None = None
    block: list[ast.stmt] = field(default_factory=list)
    low: int = 0  # the statement with what is planted beside it is block[low:high]
    high: int = 0

    @property
    def unit(self) -> list[ast.stmt]:
        return self.block[self.low : self.high]


def anchors(path: Path, version: str) -> Iterator[Anchor]:
    """Every site of a spec that applies to a version."""
    spec, diagnostics = load(path)
    assert spec is not None and not diagnostics.errors
    for number, bound in enumerate(applicable(spec, version, Diagnostics())):
        if bound.site.at != "process_exit":
            name = f"{spec.name}:{number}:{bound.transition}:{bound.site.kind}"
            yield Anchor(name, bound.site, _alone(spec, bound.binding, bound.site))


def _alone(spec: Spec, binding: Binding, site: Site) -> Spec:
    """The spec with this one site; parameters are read at its transition only.

    Nothing is imported early: the modules are not in the copy, which is checked for them.
    """
    owner = binding.ref.component
    components: dict[str, Component] = {}
    for name, component in spec.components.items():
        process = component.process
        if process is not None:
            sites = dict.fromkeys(PROCESS_KINDS, ())
            if site.kind in PROCESS_KINDS and name == owner:
                sites[site.kind] = (site,)
            process = dataclasses.replace(process, **sites)
        states = tuple(dataclasses.replace(s, imports=()) for s in component.states)
        components[name] = dataclasses.replace(component, process=process, states=states)
    here = (owner, binding.ref.state, site.kind == "publish")
    params = {
        name: dataclasses.replace(
            param,
            sources=tuple(
                s
                for s in param.sources
                if s.at is None or (s.at.component, s.at.state, True) == here
            ),
        )
        for name, param in spec.params.items()
    }
    kept = () if site.kind in PROCESS_KINDS else (Binding(binding.ref, (site,)),)
    return dataclasses.replace(spec, components=components, params=params, bindings=kept, defers=())


class Workshop:
    """A copy of the engine's files that the anchors need; one is mutated at a time."""

    def __init__(self, site_packages: Path, folder: Path, version: str) -> None:
        self.source = site_packages
        self.root = folder
        self.engine = Engine("vllm", folder, version, "--engine")
        self.locks: dict[str, str] = {}

    def prepare(self, anchor: Anchor) -> tuple[str, str]:
        """The file's path and its text with the true position planted."""
        for place in anchor.site.places:
            self._copy(place.partition(":")[0])
        result = compile_engine(anchor.spec, self.engine)
        assert result.ok, [item.message for item in result.diagnostics.sorted()]
        [file] = [f for f in parse_patch(result.patch).files if f.before is not None]
        stock = (self.root / file.path).read_bytes()
        text = _plant(patched(stock, file).decode())
        assert text.count(MARK) >= 1
        (self.root / file.path).write_text(text)
        try:
            self.locks[anchor.name] = compile_engine(anchor.spec, self.engine).lock
        finally:
            (self.root / file.path).write_bytes(stock)
        return file.path, text

    def _copy(self, module: str) -> None:
        parts = module.split(".")
        for k in range(1, len(parts) + 1):
            base = "/".join(parts[:k])
            for path in (f"{base}/__init__.py", f"{base}.py"):
                if (self.source / path).is_file() and not (self.root / path).exists():
                    (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                    (self.root / path).write_bytes((self.source / path).read_bytes())

    def judge(self, anchor: Anchor, path: str, mutated: bytes) -> tuple[str, str]:
        """The outcome, and the diagnostics' codes or what is wrong.

        ``right`` and ``refused`` speak for themselves; ``review``: right, and the lock warns
        that the function changed (``compile --update`` writes nothing); ``wrong``.
        """
        target = self.root / path
        stock = target.read_bytes()
        target.write_bytes(mutated)
        try:
            result = compile_engine(anchor.spec, self.engine, lock=self.locks[anchor.name])
        finally:
            target.write_bytes(stock)
        if not result.ok:
            codes = sorted({item.code for item in result.diagnostics.errors})
            return "refused", " ".join(codes)
        changed = [f for f in parse_patch(result.patch).files if f.before is not None]
        if [f.path for f in changed] != [path]:
            return "wrong", f"edits {[f.path for f in changed]}"
        after = patched(mutated, changed[0])
        problem = misplaced(after.decode("utf-8-sig"), mutated.decode("utf-8-sig"))
        if problem:
            return "wrong", problem
        changed_function = any(item.code == "CF413" for item in result.diagnostics)
        return ("review" if changed_function else "right"), ""


def _plant(text: str) -> str:
    """A patched file as the stock one with what was inserted turned into what is planted."""
    text = _IMPORT.sub("", text)
    found = _WRAP.search(text)
    while found:
        tree = ast.parse(text)
        source = from_bytes(text.encode())
        call = next(
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Call)
            and ast.unparse(node.func.func).startswith("_cfac.")
        )
        assert isinstance(call.func, ast.Call)
        start, end = source.span(call)
        inner, stop = source.span(call.func.args[1])
        _, close = source.span(call.func)
        comma = ", " if call.args or call.keywords else ""
        rest = text[close:end].replace("(", f"({MARK}=1{comma}", 1)
        if call.args:  # a keyword may not come before positional arguments
            rest = text[close:end].rstrip()
            rest = rest[:-1].rstrip().rstrip(",") + f", {MARK}=1)"
        text = text[:start] + text[inner:stop] + rest + text[end:]
        found = _WRAP.search(text)
    return _INSERTED.sub(rf"\1{MARK}()", text)


def misplaced(after: str, before: str) -> str:
    """What is wrong with the insertions in ``after``; empty if each is at a planted one."""
    lines = [line for line in after.split("\n") if "# cfac:" not in line]
    if MARK + "=1" not in before and lines != before.split("\n"):
        return "other lines changed"
    tree = ast.parse(after)
    inserted = planted = pairs = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(k.arg == MARK for k in node.keywords):
            planted += 1
            wrapped = isinstance(node.func, ast.Call) and _is_ours(node.func.func)
            pairs += wrapped
            inserted += wrapped
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Call):
            inserted += _is_ours(node.func.func)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            kinds = ["t" if _is_planted(s) else "c" if _is_inserted(s) else "." for s in block]
            for part in re.findall("[tc]+", "".join(kinds)):
                planted += part.count("t")
                inserted += part.count("c")
                pairs += part.count("t") if part.count("t") == part.count("c") else 0
    if not inserted == planted == pairs:
        return f"{inserted} insertions, {planted} true places, {pairs} of them matched"
    return ""


def _is_planted(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement) == f"{MARK}()"


def _is_inserted(statement: ast.AST) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and _is_ours(call.func)


def _is_ours(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "_cfac"
    )


def open_case(anchor: Anchor, path: str, text: str, root: Path) -> Case:
    """Parse a planted file and find the anchor in it."""
    source = from_bytes(text.encode(), path)
    files = Tree(root, "vllm", {path: text.encode()})
    match = resolve(anchor.site, files, anchor.name, Diagnostics())
    assert match is not None and match.source.path == path
    qualname = match.place.partition(":")[2]
    tree = source.tree
    case = Case(anchor, text, tree, tree, [])
    if qualname:
        [case.scope] = find_scopes(tree, qualname)
        case.path = [above for above, _, _ in source.ancestors(case.scope)][::-1]
    if not match.nodes:
        return case
    wanted = match.nodes[0]
    case.call = next(
        node
        for node in ast.walk(tree)
        if type(node) is type(wanted)
        and (node.lineno, node.col_offset, node.end_col_offset)  # type: ignore[attr-defined]
        == (wanted.lineno, wanted.col_offset, wanted.end_col_offset)  # type: ignore[attr-defined]
    )
    chain = [case.call, *(above for above, _, _ in source.ancestors(case.call))]
    case.statement = next(node for node in chain if isinstance(node, ast.stmt))
    owner, name = source.parent(case.statement) or (tree, "body")
    case.block = getattr(owner, name)
    case.low = next(k for k, s in enumerate(case.block) if s is case.statement)
    case.high = case.low + 1
    while case.low and _is_planted(case.block[case.low - 1]):
        case.low -= 1
    while case.high < len(case.block) and _is_planted(case.block[case.high]):
        case.high += 1
    return case


def clean(node: ast.AST) -> ast.AST:
    """A copy without what is planted in it."""
    return _Cleaner().visit(copy.deepcopy(node))


class _Cleaner(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if _is_planted(node) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [k for k in node.keywords if k.arg != MARK]
        return self.generic_visit(node)
