"""Several specs to one: what any of them says holds; only contradictions collide (CF116).

Unlike an overlay, the order of the specs means nothing but the order of insertions at one
point.  Of a base that several of them include, what one refines and the others leave is
refined (a three-way merge: a node that comes from a file of the other spec is not that
spec's own).  Otherwise:

- components, params, bindings and the engine are united by key;
- lists of states, and the chains, are united in an order that keeps both, the first spec's
  first; in the chains, two steps that nothing orders are concurrent (``a | b``);
- waits of a state, entries of ``merge``, ``defer``, ``remember`` and ``engine.unsupported``
  are united;
- of the engine's versions, those that all allow are left.

What ``channel`` and ``run`` say goes with a spec's components (compiler/runs.py): a spec of a
library has another transport than the engine, which is no contradiction.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from cfac.compiler.diagnostics import Diagnostics, Note, Span
from cfac.compiler.overlay import is_aux, state_entry
from cfac.compiler.yamlpos import ListNode, MapNode, Node, ScalarNode

Path = tuple[str, ...]
#: Keys whose values are united by key; "*" is any key.  All else is one thing.
_UNITED: frozenset[Path] = frozenset(
    {
        (),
        ("components",),
        ("components", "*"),
        ("components", "*", "process"),
        ("params",),
        ("params", "*"),
        ("bind",),
        ("bind", "*"),
        ("layouts",),
        ("engine",),
        ("channel",),
    }
)
_LISTS: frozenset[Path] = frozenset(
    {("merge",), ("defer",), ("remember",), ("engine", "unsupported"), ("params", "*", "from")}
)


@dataclass(frozen=True, slots=True)
class Document:
    """One spec with what it includes, and the names of all its files."""

    root: MapNode
    files: Set[str]


def is_local(document: Document, documents: Sequence[Document]) -> bool:
    """Whether a document is of a library beside others that are of an engine."""
    engines = any(one.root.get("engine") is not None for one in documents)
    own = any(document.root.get(key) is not None for key in ("engine", "bind"))
    return engines and not own


def compose(documents: Sequence[Document], diagnostics: Diagnostics) -> MapNode:
    """All documents as one; its name is theirs, joined by ``+``."""
    if len(documents) > 1:
        documents = [
            _without(one, {"include", *(["channel"] if is_local(one, documents) else [])})
            for one in documents
        ]
    first = documents[0]
    for other in documents[1:]:
        root = _Composer(first.files, other.files, diagnostics).maps(first.root, other.root, ())
        first = Document(root, first.files | other.files)
    return first.root


def _without(document: Document, keys: Set[str]) -> Document:
    """A document without some of its keys; what it includes is laid under it already."""
    kept = tuple((key, value) for key, value in document.root.entries if key.text not in keys)
    return Document(MapNode(kept, document.root.span), document.files)


class _Composer:
    """Unites two documents; ``here`` and ``there`` are the names of their files."""

    def __init__(self, here: Set[str], there: Set[str], diagnostics: Diagnostics) -> None:
        self.here = here
        self.there = there
        self.diagnostics = diagnostics

    def maps(self, one: MapNode, other: MapNode, path: Path) -> MapNode:
        """Two maps united by key."""
        found: list[tuple[ScalarNode, Node]] = []
        for key, value in one.entries:
            second = other.get(key.text)
            if second is None:
                found.append((key, value))
            else:
                name = self.key(key, other.key(key.text), value, second)
                found.append((name, self.nodes(value, second, (*path, key.text), key)))
        found += [(key, value) for key, value in other.entries if one.key(key.text) is None]
        return MapNode(tuple(found), one.span)

    def key(self, key: ScalarNode, other: ScalarNode | None, a: Node, b: Node) -> ScalarNode:
        """Of a key that both have, the one whose value is kept."""
        return other if other is not None and self.kept(a, b) is b else key

    def nodes(self, one: Node, other: Node, path: Path, key: ScalarNode) -> Node:
        """Two values of one key."""
        if plain(one) == plain(other) and path != ("name",):
            return one
        rule = _general(path)
        if path == ("name",) and isinstance(one, ScalarNode) and isinstance(other, ScalarNode):
            text = f"{one.text}+{other.text}"
            return ScalarNode(text, text, one.span)
        if rule in _UNITED and isinstance(one, MapNode) and isinstance(other, MapNode):
            return self.maps(one, other, path)
        kept = self.kept(one, other)
        if isinstance(one, ListNode) and isinstance(other, ListNode):
            if kept is None and rule == ("components", "*", "states"):
                return self.states(one, other, path)
            if kept is None and rule == ("chain",):
                return self.chains(one, other)
            if kept is None and (rule in _LISTS or path[-1:] == ("after",)):
                return self.lists(one, other, path)
        if kept is None and path == ("engine", "versions"):
            text = f"{_text(one)},{_text(other)}"
            return ScalarNode(text, text, one.span)
        if kept is None and path[-1:] == ("after",):
            return self.lists(_as_list(one), _as_list(other), path)
        if kept is not None:
            return kept
        self.collide(".".join(path), one.span, other.span)
        return one

    def kept(self, one: Node, other: Node) -> Node | None:
        """The node that its spec says itself, if the other is from a base of both."""
        own = [one.span.file not in self.there, other.span.file not in self.here]
        if own == [True, False]:
            return one
        if own == [False, True]:
            return other
        return None

    def lists(self, one: ListNode, other: ListNode, path: Path) -> ListNode:
        """The entries of both, each once; entries of one name must be equal."""
        found = list(one.items)
        known = {repr(plain(item)) for item in found}
        named = {name: item for item in found if (name := _name(item)) is not None}
        for item in other.items:
            if repr(plain(item)) in known:
                continue
            name = _name(item)
            if name is not None and name in named:
                self.collide(f"{'.'.join(path)} {name}", named[name].span, item.span)
                continue
            found.append(item)
        return ListNode(tuple(found), one.span)

    def states(self, one: ListNode, other: ListNode, path: Path) -> ListNode:
        """The states of both in an order that keeps both; options united by key."""
        mine = {e[0].text: (e, i) for i in one.items if (e := state_entry(i)) is not None}
        theirs = {e[0].text: (e, i) for i in other.items if (e := state_entry(i)) is not None}
        if mine and theirs and next(iter(mine)) != next(iter(theirs)):
            a, b = one.items[0].span, other.items[0].span
            self.collide(f"{'.'.join(path)}: the first state", a, b)
            return one
        order = self.united(list(mine), list(theirs), one, other, ".".join(path))
        if order is None:
            return one
        found: list[Node] = []
        for name in order:
            if name not in mine or name not in theirs:
                found.append((mine.get(name) or theirs[name])[1])
                continue
            (key, options), item = mine[name]
            (rival_key, others), second = theirs[name]
            if is_aux(options) != is_aux(others):
                what = f"{'.'.join(path)}: {name} is auxiliary in one of them only"
                self.collide(what, key.span, rival_key.span)
            if options is None or others is None:
                if options is None and others is None:
                    found.append(item)
                else:  # a bare name says nothing, unless it comes from a base of both
                    found.append(self.kept(item, second) or (item if options else second))
                continue
            inner = (*path, name)
            entries: list[tuple[ScalarNode, Node]] = []
            for option, value in options.entries:
                rival = others.get(option.text)
                if rival is not None:
                    value = self.nodes(value, rival, (*inner, option.text), option)
                entries.append((option, value))
            entries += [(o, v) for o, v in others.entries if options.key(o.text) is None]
            merged = MapNode(tuple(entries), options.span)
            found.append(MapNode(((key, merged),), key.span))
        return ListNode(tuple(found), one.span)

    def chains(self, one: ListNode, other: ListNode) -> ListNode:
        """Both weak orders.  Between steps that both have, one step of each is concurrent.

        More than one is more than a weak order can leave open: the first spec's go first.
        """
        mine = {_step(item): item for item in one.items}
        theirs = {_step(item): item for item in other.items}
        owners = {part: step for step in mine for part in step.split(" | ")}
        for step, item in theirs.items():
            for part in step.split(" | "):
                if part in owners and step not in mine:
                    self.collide(f"chain: {part}", mine[owners[part]].span, item.span)
                    return one
        if self.united(list(mine), list(theirs), one, other, "chain") is None:
            return one
        found: list[Node] = []
        a, b = list(mine), list(theirs)
        ends: list[str | None] = [step for step in mine if step in theirs]
        for end in [*ends, None]:
            left = a[: a.index(end)] if end is not None else a
            right = b[: b.index(end)] if end is not None else b
            a, b = a[len(left) + 1 :], b[len(right) + 1 :]
            both = [*(mine[s] for s in left), *(theirs[s] for s in right)]
            if len(left) == len(right) == 1:
                parts = [part for item in both for part in _as_list(item).items]
                found.append(ListNode(tuple(parts), both[0].span))
            else:
                found += both
            if end is not None:
                found.append(mine[end])
        return ListNode(tuple(found), one.span)

    def united(
        self, a: list[str], b: list[str], one: ListNode, other: ListNode, what: str
    ) -> list[str] | None:
        """``a`` and ``b`` in one order, that of ``a`` first; None where they contradict."""
        common = [x for x in a if x in b]
        if common != [x for x in b if x in a]:
            rank = {x: k for k, x in enumerate(common)}
            theirs = [x for x in b if x in rank]
            late = next(y for x, y in pairwise(theirs) if rank[x] > rank[y])
            spans = [_where(node, late) for node in (one, other)]
            self.collide(f"{what}: the order of {late}", *spans)
            return None
        found: list[str] = []
        for x in common:
            i, j = a.index(x), b.index(x)
            found += [*a[:i], *b[:j], x]
            a, b = a[i + 1 :], b[j + 1 :]
        return [*found, *a, *b]

    def collide(self, what: str, one: Span, other: Span) -> None:
        """Report a contradiction at both places."""
        self.diagnostics.error(
            "CF116",
            f"the specs contradict each other: {what}",
            other,
            notes=[Note("the other spec says it here", one)],
            help="let one of them include the other and refine it",
        )


def _general(path: Path) -> Path:
    """A path with the names of the user's own things as ``*``."""
    if len(path) > 1 and path[0] in ("components", "params", "bind", "layouts"):
        return (path[0], "*", *path[2:])
    return path


def plain(node: Node) -> object:
    """A node's content without positions; the order of keys does not count."""
    if isinstance(node, ScalarNode):
        return (type(node.value).__name__, node.value)
    if isinstance(node, ListNode):
        return [plain(item) for item in node.items]
    return {key.text: plain(value) for key, value in sorted(node.entries, key=lambda e: e[0].text)}


def _name(node: Node) -> str | None:
    """The name of an entry of ``merge``."""
    value = node.get("name") if isinstance(node, MapNode) else None
    return value.text if isinstance(value, ScalarNode) else None


def _text(node: Node) -> str:
    return node.text if isinstance(node, ScalarNode) else ""


def _as_list(node: Node) -> ListNode:
    return node if isinstance(node, ListNode) else ListNode((node,), node.span)


def _step(node: Node) -> str:
    """A step of a chain in one form: ``a | b``."""
    parts = [part for item in _as_list(node).items for part in _text(item).split("|")]
    return " | ".join(sorted(part.strip() for part in parts))


def _where(node: ListNode, name: str) -> Span:
    """The position of a state or a step in its list."""
    for item in node.items:
        entry = state_entry(item)
        if (entry is not None and entry[0].text == name) or _step(item) == name:
            return item.span
    return node.span
