"""Specs with effects, processes and forks for the tests of the hazard pass."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from build import ref, span
from cfac.compiler.graph import build
from cfac.compiler.hazards import find_hazards
from cfac.compiler.model import Effect, Index, Process, Ref, Site, Spec, Strategy

KINDS = ["reads x", "writes x", "reads env:K", "writes env:K", "holds x", "holds x together",
         "starts_threads", "openmp", "initializes", "forks", "before openmp",
         "before threads", "before device"]  # fmt: skip


def effect(text: str, until: Ref | None = None) -> Effect:
    kind, _, value = text.partition(" ")
    value, _, together = value.partition(" ")
    return Effect(kind, value or None, until, span(), together == "together")


def change(model: Spec, key: tuple[str, str], **fields: object) -> Spec:
    """``model`` with some fields of one state replaced."""
    owner = model.components[key[0]]
    states = tuple(
        dataclasses.replace(s, **fields) if s.name == key[1] else s  # type: ignore[arg-type]
        for s in owner.states
    )
    parts = {**model.components, owner.name: dataclasses.replace(owner, states=states)}
    return dataclasses.replace(model, components=parts)


def effects(model: Spec, found: dict[str, list[str]]) -> Spec:
    """``model`` with effects: ``{"a.A": ["holds x until a.B"]}``."""
    for name, texts in found.items():
        parts = [text.partition(" until ") for text in texts]
        acts = tuple(effect(head, ref(end) if end else None) for head, _, end in parts)
        component_name, _, state = name.partition(".")
        model = change(model, (component_name, state), effects=acts)
    return model


def processes(model: Spec, **parents: str) -> Spec:
    """``model`` with a process of its own for the components named, and who spawns it."""
    parts = dict(model.components)
    for name, parent in parents.items():
        process = Process(parent or None, None, Strategy(), span())
        parts[name] = dataclasses.replace(parts[name], process=process)
    return dataclasses.replace(model, components=parts)


@st.composite
def hazardous(draw: st.DrawFn, base: st.SearchStrategy[Spec], forks: bool = False) -> Spec:
    """Specs of ``base`` with effects; ``forks``: most of them beside forked processes."""
    effect_kinds = [kind for kind in KINDS if "x" not in kind.split()] if forks else KINDS
    model = draw(base)
    names = list(model.components)
    transitions = [(c.name, s.name) for c, s in model.transitions()]
    for _ in range(draw(st.integers(1, 5))):
        key = draw(st.sampled_from(transitions))
        kind = draw(st.sampled_from(effect_kinds))
        until = None
        if kind.split()[0] in ("holds", "starts_threads", "openmp") and draw(st.integers(0, 4)):
            end = model.components[draw(st.sampled_from([key[0], *names]))]
            index = Index()
            if end.replicas is not None:
                kinds = [Index("all"), Index("at", 0)]
                if model.components[key[0]].replicas == end.replicas:
                    kinds = [Index("offset", 0), *kinds, Index("offset", -1)]
                index = draw(st.sampled_from(kinds))
            state = draw(st.sampled_from([s.name for s in end.states[1:]]))
            until = Ref(end.name, state, index, span())
            if draw(st.integers(0, 4)) == 0:
                own = model.components[key[0]].replicas is None
                until = Ref(*key, Index() if own else Index("offset", 0), span())
        acts = model.components[key[0]].state(key[1])
        assert acts is not None
        model = change(model, key, effects=(*acts.effects, effect(kind, until)))
    for place, name in enumerate(names):
        if draw(st.booleans()) or (forks and place):
            parent = draw(st.sampled_from([*([] if forks and place else [""]), *names[:place]]))
            model = processes(model, **{name: parent})
            if parent and (forks or draw(st.booleans())):
                model = forked(model, name, draw)
    return model


def forked(model: Spec, name: str, draw: st.DrawFn) -> Spec:
    """``model`` with a component forked from the one that spawns it, where that can be."""
    child = model.components[name]
    assert child.process is not None and child.process.spawned_by is not None
    parent = model.components[child.process.spawned_by]
    if parent.replicas not in (None, child.replicas):
        return model
    index = Index() if parent.replicas is None else Index("offset", 0)
    at = Ref(parent.name, draw(st.sampled_from([s.name for s in parent.states])), index, span())
    context = draw(st.sampled_from([(), (Site(span(), "context", "replace_callee"),)]))
    process = dataclasses.replace(child.process, strategy=Strategy("fork", at), context=context)
    parts = {**model.components, name: dataclasses.replace(child, process=process)}
    return dataclasses.replace(model, components=parts)


def fork_edge(model: Spec, child: str, at: str, *, early: bool = True) -> Spec:
    owner = model.components[child]
    assert owner.process is not None
    context = () if early else (Site(span(), "context", "replace_callee"),)
    process = dataclasses.replace(
        owner.process, strategy=Strategy("fork", ref(at)), context=context
    )
    parts = {**model.components, child: dataclasses.replace(owner, process=process)}
    return dataclasses.replace(model, components=parts)


def codes(model: Spec) -> list[str]:
    return [h.code for h in find_hazards(model, build(model))]
