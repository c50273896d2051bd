"""Small builders of Spec objects for the tests of the graph passes."""

from __future__ import annotations

import re
from itertools import count

from cfac.compiler.diagnostics import Span
from cfac.compiler.model import (
    Component,
    Condition,
    Dependency,
    Index,
    Layout,
    MergeGroup,
    Param,
    Ref,
    Spec,
    State,
    Test,
)

_LINES = count(1)


def span(text: str = "x") -> Span:
    """A span of its own, so that edges can be told apart."""
    return Span("spec.yaml", next(_LINES), 1, 1 + len(text))


def ref(text: str) -> Ref:
    """``x.S``, ``x.*.S``, ``x[i].S``, ``x[i-1].S``, ``x[3].S``, ``x[self.r].S``."""
    match = re.fullmatch(r"([\w-]+)(?:\[([^\]]+)\])?(\.\*)?\.([\w-]+)", text)
    assert match, text
    component, index, star, state = match.groups()
    if star:
        parsed = Index("all")
    elif index is None:
        parsed = Index()
    elif index.startswith("self."):
        parsed = Index("layout", index[5:])
    elif index.startswith("i"):
        parsed = Index("offset", int(index[1:] or 0))
    else:
        parsed = Index("at", int(index))
    return Ref(component, state, parsed, span(text))


def after(*texts: str) -> tuple[Dependency, ...]:
    """``after`` entries; a leading ``~`` marks one ``schedule: true``."""
    return tuple(Dependency(ref(t.lstrip("~")), schedule=t.startswith("~")) for t in texts)


def component(
    name: str, states: dict[str, list[str]], replicas: int | str | None = None, when: str = ""
) -> Component:
    """States with their ``after`` entries; a name that ends in ``'`` is auxiliary."""
    built = tuple(
        State(s.rstrip("'"), span(s), aux=s.endswith("'"), after=after(*waits))
        for s, waits in states.items()
    )
    condition = None
    if when:
        condition = Condition((Test("param:mode", "is", when, span()),), span())
    return Component(name, span(name), built, replicas, condition)


def spec(
    *components: Component,
    chain: str = "",
    merges: dict[str, list[str]] | None = None,
    layouts: dict[str, list[list[int]]] | None = None,
) -> Spec:
    """A spec; ``chain`` is text: entries separated by spaces, ``|`` joins a class."""
    names = {c.replicas for c in components if isinstance(c.replicas, str)}
    classes = tuple(
        tuple(ref(t) for t in entry.split("|")) for entry in chain.replace(" | ", "|").split()
    )
    groups = tuple(
        MergeGroup(name, tuple(ref(t) for t in of), span(name))
        for name, of in (merges or {}).items()
    )
    tables = {}
    for key, lists in (layouts or {}).items():
        owner, relation = key.split(".")
        tables[owner, relation] = Layout(owner, relation, tuple(map(tuple, lists)), span(key))
    return Spec(
        "test",
        "spec.yaml",
        span(),
        {c.name: c for c in components},
        params={n: Param(n, "int", 1, (), span(n)) for n in sorted(names)},
        chain=classes,
        chain_span=span("chain") if chain else None,
        merges=groups,
        layouts=tables,
    )
