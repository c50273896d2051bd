"""Where every anchor of a spec is in one engine tree: what the lock keeps, and drift compares.

A survey holds, per site, its place, line and the statement it is at, and per function that
is touched its source without layout and comments, one statement a line.  Nothing in it
depends on the machine; a site that has no place has an anchor without one.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cfac.codegen.anchors import Match, Tree, resolve
from cfac.codegen.defer import deferrals, deferred_imports
from cfac.codegen.lock import Function, fingerprint, has_docstring
from cfac.codegen.places import FUNCTIONS, Def, module_name
from cfac.codegen.positions import Refused, points
from cfac.codegen.sites import Bound
from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.model import Defer

_TEXT = 200  # characters of an anchor's statement that are kept


@dataclass(frozen=True, slots=True)
class Anchor:
    """One site in one tree.  ``number`` tells the sites of one transition and kind apart.

    ``path`` is empty and ``problem`` says why where the site has no place in this tree.
    ``line`` counts from 1 in the unpatched file; ``count`` is how many places are edited.
    """

    transition: str
    kind: str
    number: int
    at: str
    place: str
    path: str = ""
    line: int = 0
    count: int = 0
    text: str = ""
    problem: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """What names the same site in another survey."""
        return self.transition, self.kind, self.number


@dataclass(slots=True)
class Survey:
    """All anchors of a spec in one tree, and the functions they are in, by place."""

    package: str
    version: str
    anchors: list[Anchor] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)


def survey(
    tree: Tree, version: str, bounds: Sequence[Bound], defers: Sequence[Defer] = ()
) -> Survey:
    """Resolve every site; what cannot be is kept with its problem.  The tree is only read.

    What is deferred counts as a site: its kind names the place.
    """
    found = Survey(tree.package, version)
    numbers: Counter[tuple[str, str]] = Counter()
    key: tuple[str, str]
    for bound in bounds:
        if bound.site.at == "process_exit":
            continue
        key = (bound.transition, bound.site.kind)
        found.anchors.append(_anchor(tree, bound, numbers[key], found))
        numbers[key] += 1
    for entry in defers:
        for place in _deferred(entry, tree, found):
            key = (place.transition, place.kind)
            found.anchors.append(replace(place, number=numbers[key]))
            numbers[key] += 1
    return found


def _deferred(entry: Defer, tree: Tree, found: Survey) -> Iterator[Anchor]:
    """The places of what is deferred; a function that runs later is noted in ``found``."""
    label = entry.label
    if entry.kind == "import":
        for source, one in deferred_imports(entry, tree, Diagnostics()):
            module, count = module_name(source.path), 1 + len(one.users)
            line, kind = one.statement.lineno, f"import in {module}"
            yield Anchor(label, kind, 0, "defer", module, source.path, line, count, one.text)
        return
    for place in deferrals(entry, tree, Diagnostics()):
        at, count = place.place, int(place.callee is not None)
        kind, path = f"{entry.kind} in {at}", place.source.path
        if place.runs is not None:
            at = f"{at}:{place.runs.name}"
            found.functions[at] = scope_function(place.runs, path)
        yield Anchor(label, kind, 0, "defer", at, path, place.line, count)


def _anchor(tree: Tree, bound: Bound, number: int, found: Survey) -> Anchor:
    site = bound.site
    head = (bound.transition, site.kind, number, site.at)
    diagnostics = Diagnostics()
    match = resolve(site, tree, f"{bound.transition} {site.kind}", diagnostics)
    if match is None:
        message = next((item.message for item in diagnostics.sorted()), "no place")
        wanted = f"{' or '.join(site.names)}" if site.names else ""
        return Anchor(*head, site.places[0], text=wanted, problem=message)
    found.functions[match.place] = scope_function(match.scope, match.source.path)
    nodes = match.nodes or (None,)
    text, line = _text(match.nodes[0]) if match.nodes else "", _line(match)
    try:
        count = len(nodes)
        if site.at != "replace_callee":
            count = sum(len(points(match.source, match.scope, n, site.at)) for n in nodes)
    except Refused as refused:
        return Anchor(*head, match.place, text=text, problem=f"line {line}: {refused.reason}")
    return Anchor(*head, match.place, match.source.path, line, count, text)


def _line(match: Match) -> int:
    node = match.nodes[0] if match.nodes else match.scope
    return getattr(node, "lineno", 1)


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."


def scope_function(scope: ast.AST, path: str) -> Function:
    """A function (or module) of the file ``path``, as the lock keeps it."""
    return Function(fingerprint(scope), outline(scope), path, getattr(scope, "lineno", 1))


def outline(scope: ast.AST) -> tuple[str, ...]:
    """A scope's source without layout, comments and docstrings, a statement a line.

    Of a module, what runs at import.
    """
    whole = not isinstance(scope, ast.Module)
    scope = copy.deepcopy(scope)
    for node in ast.walk(scope):
        if has_docstring(node):
            assert isinstance(node, ast.Module | Def)
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
        if isinstance(node, FUNCTIONS) and not whole:
            node.body = [ast.Expr(ast.Constant(...))]
    return tuple(line for line in ast.unparse(scope).splitlines() if line.strip())
