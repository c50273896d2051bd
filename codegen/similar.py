"""Functions and statements of a tree that resemble ones that are gone, with a similarity.

The whole package is searched by text for the identifiers of what is gone; only the files
that share most of them are parsed.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cfac.codegen.anchors import Tree
from cfac.codegen.places import (
    DEFS,
    definitions,
    dotted,
    find_scopes,
    module_file,
    module_name,
    walk_scope,
)
from cfac.codegen.survey import outline

_WORD = re.compile(r"[A-Za-z_]\w{5,}")
_FILES = 10  # parsed at most
_SHOWN = 3
_FUNCTION = 0.35  # candidates less similar than this are not shown
_STATEMENT = 0.55


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place that what vanished may be now.  ``similarity`` is 0 to 1."""

    kind: str  # function or statement
    place: str
    path: str
    line: int
    text: str
    similarity: float


def similarity(one: Sequence[str], other: Sequence[str]) -> float:
    """The ratio of equal statements of two functions, their ``def`` lines aside."""
    return difflib.SequenceMatcher(None, list(one[1:]), list(other[1:]), autojunk=False).ratio()


def nearest_statements(tree: Tree, place: str, text: str) -> list[Candidate]:
    """Calls, imports and assignments of the function at ``place`` that read like ``text``."""
    module, _, qualname = place.partition(":")
    path = module_file(tree.root, module)
    source = tree.read(path) if path else None
    if source is None:
        return []
    scopes = find_scopes(source.tree, qualname) if qualname else [source.tree]
    best: dict[str, tuple[float, int]] = {}
    for scope in scopes:
        for node in walk_scope(scope):
            if not isinstance(node, ast.Call | ast.Import | ast.ImportFrom | ast.Assign):
                continue
            here = " ".join(ast.unparse(node).split())[:200]
            score = _likeness(node, here, text)
            line = getattr(node, "lineno", 0)
            if score >= _STATEMENT and score > best.get(here, (0.0, 0))[0]:
                best[here] = (score, line)
    found = [
        Candidate("statement", place, source.path, line, here, round(score, 3))
        for here, (score, line) in best.items()
    ]
    return sorted(found, key=lambda c: (-c.similarity, c.line))[:_SHOWN]


def _likeness(node: ast.AST, here: str, text: str) -> float:
    """Against a whole statement, or only its name where no more than that is known."""
    matcher = difflib.SequenceMatcher(None, here, text, autojunk=False)
    score = matcher.ratio() if matcher.real_quick_ratio() >= _STATEMENT else 0.0
    if isinstance(node, ast.Call) and "(" not in text:
        name = ".".join(dotted(node.func))
        score = max(score, difflib.SequenceMatcher(None, name, text, autojunk=False).ratio())
    return score


def nearest_places(tree: Tree, place: str, source: Sequence[str], text: str) -> list[Candidate]:
    """Functions anywhere in the package that resemble the one that was at ``place``.

    By their statements where ``source`` is known; a same name counts a little.
    """
    module, _, qualname = place.partition(":")
    last = qualname.rpartition(".")[2]
    words = set(_WORD.findall("\n".join(source) + "\n" + text + "\n" + qualname))
    found: list[Candidate] = []
    for path, parsed in tree.index().parse(_files(tree, words, module)):
        for name, node in definitions(parsed.tree):
            if isinstance(node, DEFS[:2]) != (not source or not source[0].startswith("class")):
                continue
            if source:
                own = outline(node)
                matcher = difflib.SequenceMatcher(
                    None, list(source[1:]), list(own[1:]), autojunk=False
                )
                if matcher.quick_ratio() < _FUNCTION:
                    continue
                score = matcher.ratio()
            else:
                score = 0.8 * difflib.SequenceMatcher(None, name, qualname, autojunk=False).ratio()
            score = min(1.0, score + (0.1 if node.name == last and score < 1 else 0.0))
            if score >= _FUNCTION:
                where = f"{module_name(path)}:{name}"
                line = parsed.line(node.lineno).strip()[:100]
                found.append(Candidate("function", where, path, node.lineno, line, round(score, 3)))
    return sorted(found, key=lambda c: (-c.similarity, c.path, c.line))[:_SHOWN]


def _files(tree: Tree, words: set[str], module: str) -> list[str]:
    """The files with most of the words, rare words counting more; the old module's first."""
    raw = tree.index().raw
    holds: Counter[str] = Counter()
    hits: dict[str, list[str]] = {}
    for word in words:
        data = word.encode()
        hits[word] = [path for path, text in raw.items() if data in text]
    scores: dict[str, float] = dict.fromkeys(raw, 0.0)
    for paths in hits.values():
        for path in paths:
            scores[path] += 1 / len(paths)
            holds[path] += 1
    order = sorted(raw, key=lambda path: (module_name(path) != module, -scores[path], path))
    return [path for path in order[:_FILES] if holds[path]]
