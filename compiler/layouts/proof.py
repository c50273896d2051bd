"""Shows that a refinement was legal, and that the final states are those of the naive spec.

What has to hold (docs/tensors.md), and how it is shown:

- *Split*: every byte of every tensor lies in exactly one piece.  One pass in C over the map
  (`cfac_layout_check`, done by ``chunkmap.cut``).
- *Merge*: the groups are disjoint and their quotient is acyclic.  Pieces ascend through
  chunks, so each group is an interval of the order that the stages have, and a quotient by
  intervals of a chain is a chain.  Where the map is small this is not only argued: the split
  graph is built, the groups go through the compiler's own pass for merges, and the quotient
  must be the derived chunk's stages, edge for edge (``quotient_edges``).
- *Order*: what is ordered for correctness stays so.  Each naive transition has stand-ins
  (``T.s`` -> chunk.s of its chunks; the last -> T.Loaded); for each naive order that is not
  ``schedule: true`` there is a path between them, that needs no such order either.
- *Final states* (Theorem 2): each tensor has one stock transition, its last, and all that was
  added is auxiliary; so with auxiliary states projected away each tensor goes where it went.
- *Termination* (Theorem 1) of the refined graph is ``check``'s business, as for any spec.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.graph import build
from cfac.compiler.layouts.chunkmap import ChunkMap
from cfac.compiler.layouts.read import CHUNK
from cfac.compiler.merge import check_merges, group_nodes, quotient
from cfac.compiler.model import (
    Component,
    Dependency,
    Index,
    Layout,
    MergeGroup,
    Ref,
    Refined,
    Spec,
    State,
)
from cfac.compiler.theorem1 import prove, witness

#: Maps with at most this many pieces are merged by the compiler's own pass, too.
MAX_MERGED = 16384


@dataclass(frozen=True, slots=True)
class Shown:
    """What was shown of one refinement, a line each; ``problems`` is empty if all holds."""

    lines: tuple[str, ...]
    problems: tuple[str, ...]


def check_refinements(spec: Spec, out: Diagnostics) -> None:
    """Report what a refinement loses (CF624)."""
    for refined in spec.refined:
        for problem in show(spec, refined).problems:
            out.error("CF624", problem, refined.refine.span)


def show(spec: Spec, refined: Refined) -> Shown:
    """All of the above, for one refinement of ``spec``."""
    lines: list[str] = []
    problems: list[str] = []
    naive = prove(build(naive_spec(spec, refined)))
    if naive.holds:
        order = witness(build(naive_spec(spec, refined)), naive)
        lines.append(f"naive: acyclic for every count: {' > '.join(order)}")
    chunks = refined.chunks
    if chunks is not None:
        lines.append(
            f"split: each of {chunks.headers.bytes} bytes of {chunks.tensors} tensors lies in "
            f"one of {chunks.pieces} pieces"
        )
        lines.append(_merged(spec, refined, chunks, problems))
    else:
        lines.append("split and merge: a model's layout is checked when its headers are read")
    pairs = list(naive_orders(refined))
    problems += [
        f"the refinement loses an order: {last} is no longer after {first}"
        for first, last, start, end in pairs
        if not reaches(spec, start, end)
    ]
    problems += final_states(spec, refined)
    lines.append(f"order: {', '.join(f'{last} after {first}' for first, last, *_ in pairs)}: kept")
    tensor = refined.refine.component
    lines.append(
        f"final states: {tensor}.{refined.naive.states[-1].name} is "
        f"{tensor}.{refined.refine.states[-1][0]}; all other transitions are auxiliary"
    )
    return Shown(tuple(lines), tuple(problems))


def naive_spec(spec: Spec, refined: Refined) -> Spec:
    """The naive component by itself; its waits for others are not part of the refinement."""
    naive = refined.naive
    states = tuple(
        State(s.name, s.span, s.aux, tuple(d for d in s.after if d.ref.component == naive.name))
        for s in naive.states
    )
    alone = Component(naive.name, naive.span, states, naive.replicas)
    return Spec(spec.name, spec.file, spec.span, {naive.name: alone}, params=spec.params)


# -- split and merge ---------------------------------------------------------------


def split_spec(refined: Refined, chunks: ChunkMap) -> Spec:
    """Step 1 and the groups of step 2: one ``piece`` for each piece, with the naive stages."""
    naive, name = refined.naive, "piece"
    states = [State(naive.states[0].name, naive.span)]
    for state in naive.states[1:]:
        after = tuple(
            Dependency(Ref(name, state.name, Index("offset", -1), d.ref.span), d.schedule)
            for d in state.after
            if d.ref.component == naive.name
        )
        states.append(State(state.name, state.span, True, after))
    pieces = Component(name, naive.span, tuple(states), chunks.pieces)
    groups = tuple(
        MergeGroup(
            f"{CHUNK}-{c}-{state.name}",
            tuple(Ref(name, state.name, Index("at", p), naive.span) for p in row),
            naive.span,
        )
        for c, row in enumerate(chunks.rows["chunk.pieces"])
        for state in naive.states[1:]
    )
    # The relation has the pass expand all pieces, however many they are.
    related = Layout(name, "chunk", chunks.rows["piece.chunk"], naive.span)
    layouts = {(name, "chunk"): related}
    return Spec("split", "", naive.span, {name: pieces}, merges=groups, layouts=layouts)


def quotient_edges(split: Spec, out: Diagnostics) -> set[tuple[str, str]]:
    """The edges between groups; what is wrong with the merge goes to ``out``."""
    graph = build(split)
    found = Diagnostics()
    grouping = group_nodes(split, graph, found)
    check_merges(graph, grouping, prove(graph).cyclic, found, lambda _: False)
    out.extend(item for item in found if item.severity == "error")
    merged = quotient(graph, grouping)
    names = [node.component.removeprefix("group ").strip("'") for node in merged.nodes]
    return {(names[edge.source], names[edge.target]) for edge in merged.edges}


def stage_edges(refined: Refined, count: int) -> set[tuple[str, str]]:
    """The edges of the derived chunk's stages at depth 1, for this many chunks."""
    stages = [state.name for state in refined.naive.states[1:]]
    chained = {
        state.name
        for state in refined.naive.states[1:]
        if any(d.ref.component == refined.naive.name for d in state.after)
    }
    found: set[tuple[str, str]] = set()
    for c in range(count):
        for place, stage in enumerate(stages):
            name = f"{CHUNK}-{c}-{stage}"
            if place:
                found.add((f"{CHUNK}-{c}-{stages[place - 1]}", name))
            if stage in chained and c:
                found.add((f"{CHUNK}-{c - 1}-{stage}", name))
    return found


def _merged(spec: Spec, refined: Refined, chunks: ChunkMap, problems: list[str]) -> str:
    stages = len(refined.naive.states) - 1
    if not 0 < chunks.pieces <= MAX_MERGED:
        return (
            f"merge: {stages} stages of {chunks.pieces} pieces into {chunks.chunks} chunks: pieces "
            "ascend through chunks, so each group is an interval of its stage's order"
        )
    out = Diagnostics()
    edges = quotient_edges(split_spec(refined, chunks), out)
    if out.items:
        more = f" (and {len(out) - 1} more)" if len(out) > 1 else ""
        problems.append(f"the merge is not legal: {out.items[0].message}{more}")
    if edges != stage_edges(refined, chunks.chunks):
        problems.append("the merged stages are not those of the derived chunk")
    return (
        f"merge: {stages * chunks.chunks} groups of {stages * chunks.pieces} transitions are "
        "disjoint and their quotient is acyclic; it is the chunk's stages, edge for edge"
    )


# -- order and final states --------------------------------------------------------


def naive_orders(refined: Refined) -> Iterator[tuple[str, str, tuple[str, str], tuple[str, str]]]:
    """The naive component's own order: two names, and the transitions that stand for them."""
    tensor = refined.refine.component
    states = refined.naive.states
    stand_ins = [(CHUNK, state.name) for state in states[1:-1]]
    stand_ins.append((tensor, refined.refine.states[-1][0]))
    names = [f"{tensor}.{state.name}" for state in states[1:]]
    for place in range(1, len(names)):
        yield names[place - 1], names[place], stand_ins[place - 1], stand_ins[place]


def reaches(spec: Spec, start: tuple[str, str], end: tuple[str, str]) -> bool:
    """Whether ``end`` is after ``start`` by orders that correctness needs.

    Only a component's own order and waits along its layout count: those lead from a chunk to
    its pieces and on to their tensors, for whatever layout.
    """
    before: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for component in spec.components.values():
        for previous, state in zip(component.states, component.states[1:], strict=False):
            found = before.setdefault((component.name, state.name), [])
            found.append((component.name, previous.name))
            found += [
                (d.ref.component, d.ref.state)
                for d in state.after
                if d.ref.index.kind == "layout" and not d.schedule
            ]
    todo, seen = [end], {end}
    while todo:
        for name in before.get(todo.pop(), ()):
            if name == start:
                return True
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return False


def final_states(spec: Spec, refined: Refined) -> list[str]:
    """What is wrong with the refined components' stock transitions."""
    refine = refined.refine
    last = refine.states[-1][0]
    tensor = spec.components.get(refine.component)
    if tensor is None or [s.name for s in tensor.states if not s.aux][1:] != [last]:
        return [f"{refine.component} does not end in {last}, its one stock transition"]
    if tensor.replicas != refined.naive.replicas:
        return [f"{refine.component} has other replicas than before"]
    relations = {(v.component, v.relation): v for v in spec.layouts.values()}
    added = [spec.components[name] for name in (CHUNK, "piece") if name in spec.components]
    stock = [f"{c.name}.{s.name}" for c in added for s in c.states[1:] if not s.aux]
    if stock:
        return [f"{', '.join(stock)}: added by the refinement, but not auxiliary"]
    if not any(owner == tensor.name for owner, _ in relations):
        return [f"{tensor.name} has no layout"]
    return []
