"""Refinement: the derived graph, what is proven of it, and simulations that do not know it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import write_model

from cfac.compiler.api import check, compile_plan, load
from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.expand import Expanded, expand
from cfac.compiler.graph import build
from cfac.compiler.layouts import derive as deriving
from cfac.compiler.layouts.chunkmap import PAGE, ChunkMap, Rows
from cfac.compiler.layouts.proof import quotient_edges, show, split_spec, stage_edges
from cfac.compiler.model import Dependency, Index, Ref, Spec
from cfac.compiler.theorem1 import prove
from cfac.runtime.errors import ChannelError
from cfac.runtime.plan import Plan

ROOT = Path(__file__).parents[2]
LOADING = ROOT / "specs" / "vllm" / "tensor-loading.yaml"
RANKS = ROOT / "specs" / "vllm" / "tensor-loading-ranks.yaml"
NAIVE = ROOT / "specs" / "tensors" / "naive.yaml"

sizes = st.lists(st.integers(0, 30_000), max_size=10)
models = st.lists(sizes, min_size=1, max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("refine")


def written(folder: Path, files: list[list[int]], options: str, naive: str = "") -> Path:
    """A spec for a model of these sizes."""
    model = folder / "model"
    for old in model.glob("*"):
        old.unlink()
    write_model(model, files)
    path = folder / "spec.yaml"
    stages = naive or (
        "[InDisk, InMem: {after: {state: 'tensor[i-1].InMem', schedule: true}}, "
        "InGPU: {after: {state: 'tensor[i-1].InGPU', schedule: true}}]"
    )
    path.write_text(
        "apiVersion: cfac/v1\nkind: StartupGraph\nname: refined\n"
        "params: {tensors: {type: int, default: 3}}\n"
        f"components: {{tensor: {{replicas: tensors, states: {stages}}}}}\n"
        "chain: ['tensor.*.InMem | tensor.*.InGPU']\n"
        f"refine: {{tensor: {{layout: {{safetensors: model}}, {options}}}}}\n"
    )
    return path


def option(ring: int, release: str, depth: int = 1, pages: int = 1) -> str:
    return (
        f"chunk: [InDisk, InMem, InGPU, Destroyed], ring: {ring}, depth: {depth}, "
        f"release: {release}, chunk_size: {pages * PAGE}"
    )


def chunks_of(spec: Spec) -> ChunkMap:
    chunks = spec.refined[0].chunks
    assert chunks is not None
    return chunks


def stuck(graph: Expanded) -> int:
    """How many transitions never run."""
    missing = [0] * len(graph.names)
    for targets in graph.successors:
        for target in targets:
            missing[target] += 1
    ready = [node for node, count in enumerate(missing) if not count]
    done = 0
    while ready:
        done += 1
        for target in graph.successors[ready.pop()]:
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return len(graph.names) - done


def simulate(chunks: ChunkMap, ring: int, release: str, seed: int) -> list[int]:
    """A loader with ``ring`` buffers, run in random order: how often each tensor's pieces came.

    It knows buffers, chunks and pieces, and none of the graph's edges: a chunk is read into a
    free buffer, in file order; then its pieces are copied out; its buffer is free again once
    its pieces are (``pieces``) or its tensors are whole (``tensors``).  Ends when nothing can
    go on.
    """
    chance = random.Random(seed)
    free, following = ring, 0
    copied: set[int] = set()
    held: list[int] = []
    rows = chunks.rows
    while True:
        can: list[tuple[str, int]] = []
        if free and following < chunks.chunks:
            can.append(("read", following))
        for c in held:
            can += [("copy", p) for p in rows["chunk.pieces"][c] if p not in copied]
            wanted = rows["chunk.pieces"][c]
            if release == "tensors":
                wanted = [p for t in rows["chunk.tensors"][c] for p in rows["tensor.pieces"][t]]
            if all(p in copied for p in wanted):
                can.append(("free", c))
        if not can:
            return [sum(p in copied for p in row) for row in rows["tensor.pieces"]]
        what, which = chance.choice(can)
        if what == "read":
            held.append(which)
            free, following = free - 1, following + 1
        elif what == "copy":
            copied.add(which)
        else:
            held.remove(which)
            free += 1


@given(models, st.integers(1, 5), st.sampled_from(["pieces", "tensors"]), st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_a_ring_is_accepted_exactly_where_a_loader_ends(folder, files, ring, release, seed):
    spec, found = load(written(folder, files, option(ring, release)))
    assert spec is not None
    chunks = chunks_of(spec)
    came = simulate(chunks, ring, release, seed)
    ends = came == list(chunks.item_chunks)
    assert [d.code for d in found.errors] == ([] if ends else ["CF610"])
    assert ends or release == "tensors"
    assert ends == (release == "pieces" or chunks.widest()[0] <= ring)
    assert stuck(expand(spec, {})) == 0 or not ends
    if ends:
        assert check(spec).diagnostics == []


@given(models, st.integers(1, 4), st.integers(1, 3), st.sampled_from(["pieces", "tensors"]))
@settings(max_examples=60, deadline=None)
def test_the_proof_for_every_layout_holds_for_each(folder, files, ring, depth, release):
    """The template, which knows no layout, and the expanded graph of one, agree."""
    path = written(folder, files, option(ring, release, depth))
    spec, found = load(path)
    assert spec is not None
    layouts = {key: replace(v, symbolic=True) for key, v in spec.layouts.items()}
    template = replace(spec, layouts=layouts)
    assert prove(build(template)).holds
    assert all(node.symbolic for node in build(template).nodes)
    exact = build(spec)
    if not found.errors:
        assert not any(node.symbolic for node in exact.nodes)
        assert prove(exact).holds


def stuck_by_counting(spec: Spec, seed: int) -> int:
    """As ``stuck``, with bounds that count replicas in place of naming one; in random order."""
    graph = expand(spec, {})
    chance = random.Random(seed)
    strict: list[set[int]] = [set() for _ in graph.names]
    bounds: list[list[tuple[str, int]]] = [[] for _ in graph.names]
    for edge in graph.edges:
        if edge.ref is None or edge.ref.index.kind != "offset":
            strict[edge.target].add(edge.source)
    for node, transition in enumerate(graph.transitions):
        component = spec.components[transition.component]
        for dependency in component.states[component.position(transition.state)].after:
            if dependency.bound:
                ref = dependency.ref
                bounds[node].append((ref.state, -int(ref.index.value or 0)))
    done: set[int] = set()
    while True:
        reached = {
            state: {
                t.index or 0
                for t, node in graph.ids.items()
                if t.component == "chunk" and t.state == state and node in done
            }
            for state in ("InMem", "InGPU", "Destroyed")
        }
        can = [
            node
            for node, transition in enumerate(graph.transitions)
            if node not in done
            and strict[node] <= done
            and all(
                sum(k not in reached[state] for k in range(transition.index or 0)) < limit
                for state, limit in bounds[node]
            )
        ]
        if not can:
            return len(graph.names) - len(done)
        done |= set(chance.sample(can, chance.randint(1, len(can))))


@given(
    st.lists(st.integers(0, 12_000), max_size=5).map(lambda row: [row]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["pieces", "tensors"]),
    st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_any_buffer_will_do_where_the_ring_is_safe(folder, files, ring, depth, release, seed):
    """Chunks come by number (as the library reads them), but any of the buffers is taken."""
    spec, found = load(written(folder, files, option(ring, release, depth)))
    assert spec is not None
    left = stuck_by_counting(spec, seed)
    assert left == 0 or (found.errors and stuck(expand(spec, {})))


@given(models)
@settings(max_examples=60, deadline=None)
def test_the_merged_pieces_are_the_derived_chunk(folder, files):
    spec, _ = load(written(folder, files, option(2, "pieces")))
    assert spec is not None
    refined, chunks = spec.refined[0], chunks_of(spec)
    assert show(spec, refined).problems == ()
    out = Diagnostics()
    edges = quotient_edges(split_spec(refined, chunks), out)
    assert not out.items
    assert edges == stage_edges(refined, chunks.chunks)
    # The derived chunk's own stages, read off the expanded graph.
    graph = expand(spec, {})
    derived = set()
    for edge in graph.edges:
        a, b = graph.transitions[edge.source], graph.transitions[edge.target]
        stages = ("InMem", "InGPU")
        if a.component == b.component == "chunk" and a.state in stages and b.state in stages:
            derived.add((f"chunk-{a.index}-{a.state}", f"chunk-{b.index}-{b.state}"))
    assert derived == edges


def test_a_merge_of_pieces_that_do_not_ascend_is_refused(folder):
    spec, _ = load(written(folder, [[4096 * 4]], option(4, "pieces")))
    assert spec is not None
    refined, chunks = spec.refined[0], chunks_of(spec)
    assert chunks.pieces >= 4
    rows = [(0, 2), (1, 3), tuple(range(4, chunks.pieces))]
    chunks.rows["chunk.pieces"] = Rows(len(rows), lambda c: rows[c])
    problems = show(spec, refined).problems
    assert any("merge is not legal" in text and "chunk-0-InMem" in text for text in problems)
    assert any("not those of the derived chunk" in text for text in problems)
    codes = [d.code for d in check(spec).diagnostics]
    assert codes.count("CF624") == len(problems)


def mutated(spec: Spec, owner: str, state: int, **changes: object) -> Spec:
    component = spec.components[owner]
    states = list(component.states)
    states[state] = replace(states[state], **changes)
    components = {**spec.components, owner: replace(component, states=tuple(states))}
    return replace(spec, components=components)


def test_what_a_refinement_loses_is_found():
    spec, _ = load(LOADING)
    assert spec is not None
    refined = spec.refined[0]
    assert show(spec, refined).problems == ()
    (lost,) = show(mutated(spec, "tensor", 1, after=()), refined).problems
    assert lost == "the refinement loses an order: tensor.InGPU is no longer after tensor.InMem"
    (lost,) = show(mutated(spec, "piece", 1, after=()), refined).problems
    assert "loses an order" in lost
    faster = tuple(replace(d, schedule=True) for d in spec.components["piece"].states[1].after)
    (lost,) = show(mutated(spec, "piece", 1, after=faster), refined).problems
    assert "loses an order" in lost
    (added,) = show(mutated(spec, "chunk", 2, aux=False), refined).problems
    assert added == "chunk.InGPU: added by the refinement, but not auxiliary"
    (last,) = show(mutated(spec, "tensor", 1, name="Other"), refined).problems[-1:]
    assert "does not end in Loaded" in last


def test_the_shipped_specs():
    for path in (NAIVE, LOADING, RANKS):
        spec, found = load(path)
        assert spec is not None and not found.items
        result = check(spec)
        assert result.diagnostics == []
    assert spec.components["chunk"].states[3].name == "Gathered"
    wait = spec.components["piece"].states[1].after[0]
    assert str(wait.ref) == "chunk[self.chunk].Gathered"
    spec, _ = load(LOADING)
    assert spec is not None
    assert check(spec).order == [
        "for i = 0, 1, …: chunk[i].InMem, chunk[i].InGPU, piece[of chunk i].Copied, "
        "chunk[i].Destroyed",
        "tensor.*.Loaded",
    ]


@pytest.mark.parametrize("ring", [1, 2, 16])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_template_is_acyclic_for_every_ring(tmp_path, ring, depth):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "apiVersion: cfac/v1\nkind: StartupGraph\nname: deeper\n"
        f"include: ['{LOADING}']\nrefine: {{tensor: {{ring: {ring}, depth: {depth}}}}}\n"
    )
    spec, found = load(path)
    assert spec is not None and not found.items
    assert check(spec).diagnostics == []
    memory = spec.components["chunk"].states[1].after
    assert [str(d.ref) for d in memory] == [f"chunk[i-{depth}].InMem", f"chunk[i-{ring}].Destroyed"]


def test_without_the_relation_the_template_would_be_cyclic():
    """That pieces are numbered by their chunk is what the proof rests on."""
    spec, _ = load(LOADING)
    assert spec is not None
    layouts = {key: replace(v, shift=None) for key, v in spec.layouts.items()}
    assert not prove(build(replace(spec, layouts=layouts))).holds


def test_the_witness_of_the_papers_form(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "apiVersion: cfac/v1\nkind: StartupGraph\nname: paper\n"
        f"include: ['{LOADING}']\nrefine: {{tensor: {{release: tensors, ring: 4, depth: 1}}}}\n"
    )
    spec, found = load(path)
    assert spec is not None and not found.items and "piece" not in spec.components
    assert check(spec).order == [
        "for i = 0, 1, …: chunk[i].InMem, chunk[i].InGPU, tensor[that ends in chunk i].Loaded, "
        "chunk[i-3].Destroyed"
    ]


def test_a_ring_edge_the_other_way_is_found():
    spec, _ = load(LOADING)
    assert spec is not None
    span = spec.span
    after = (Dependency(Ref("chunk", "Destroyed", Index("offset", 1), span)),)
    result = check(mutated(spec, "chunk", 1, after=after))
    assert [d.code for d in result.diagnostics if d.severity == "error"] == ["CF301"]
    assert result.order is None


def test_waits_from_and_to_other_components_are_carried(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "apiVersion: cfac/v1\nkind: StartupGraph\nname: carried\n"
        "params: {n: {type: int, default: 2}}\n"
        "components:\n"
        "  worker: {states: [Start, Allocated, {Ready: {after: tensor.*.InGPU}}]}\n"
        "  watch: {states: [Start, {Half: {after: tensor.*.InMem}}]}\n"
        "  tensor: {replicas: n, states: [InDisk, InMem, {InGPU: {after: worker.Allocated}}]}\n"
        "chain: [worker.Allocated, tensor.*.InMem, watch.Half, tensor.*.InGPU, worker.Ready]\n"
        "refine: {tensor: {layout: safetensors, chunk: [InDisk, InMem, InGPU, Destroyed]}}\n"
    )
    spec, found = load(path)
    assert spec is not None and not found.items
    assert check(spec).diagnostics == []

    def waits(name: str, state: int) -> list[str]:
        return [str(d.ref) for d in spec.components[name].states[state].after]

    assert waits("worker", 2) == ["tensor.*.Loaded"]
    assert waits("watch", 1) == ["chunk.*.InMem"]
    assert waits("chunk", 2) == ["worker.Allocated"]
    steps = [[str(ref) for ref in step] for step in spec.chain]
    assert steps == [["worker.Allocated"], ["watch.Half"], ["tensor.*.Loaded"], ["worker.Ready"]]


def test_the_plan_does_not_depend_on_the_model(tmp_path):
    write_model(tmp_path, [[30_000, 5]])
    plain, _ = load(LOADING)
    with_model, found = load(LOADING, model=str(tmp_path), chunk_size="4KiB")
    assert plain is not None and with_model is not None and not found.items
    one, two = compile_plan(plain), compile_plan(with_model)
    assert one["refine"]["tensor"].pop("chunk_size") == "auto"
    assert two["refine"]["tensor"].pop("chunk_size") == 4096
    assert one == two
    assert one["layouts"] == {}


def test_a_loader_can_instantiate_the_plan(tmp_path):
    """With counts and lists from the headers, the runtime resolves every wait."""
    write_model(tmp_path, [[5000, 9000]])
    spec, _ = load(LOADING, model=str(tmp_path), chunk_size="4KiB")
    assert spec is not None
    chunks = chunks_of(spec)
    data = compile_plan(spec)
    counts = data["refine"]["tensor"]["counts"]
    data["layouts"] = {name: list(rows) for name, rows in chunks.rows.items()}
    plan = Plan.of(data)
    for what, name in counts.items():
        plan.params[name] = getattr(chunks, what)
    graph = expand(spec, {})
    for edge in graph.edges:
        source, target = graph.transitions[edge.source], graph.transitions[edge.target]
        if edge.ref is not None:
            needs = plan.needs(f"{target.component}.{target.state}", target.index)
            assert (f"{source.component}[{source.index}]", source.state) in needs
    total = sum(len(plan.needs(f"{t.component}.{t.state}", t.index)) for t in graph.transitions)
    assert total == sum(edge.ref is not None for edge in graph.edges)


def test_large_models_stay_collapsed(tmp_path, monkeypatch):
    write_model(tmp_path, [[50_000] * 4])
    spec, _ = load(LOADING, model=str(tmp_path), chunk_size="4KiB")
    assert spec is not None
    assert not build(spec).nodes[0].symbolic
    monkeypatch.setattr(deriving, "MAX_EXACT", 10)
    spec, _ = load(LOADING, model=str(tmp_path), chunk_size="4KiB")
    assert spec is not None
    assert all(node.symbolic for node in build(spec).nodes)
    assert check(spec).diagnostics == []
    assert len(expand(spec, {}).names) == 4 + 3 * 49 + chunks_of(spec).pieces


def test_effects_of_a_stage_are_the_chunks(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "apiVersion: cfac/v1\nkind: StartupGraph\nname: effects\n"
        "params: {n: {type: int, default: 2}}\n"
        "components:\n"
        "  tensor:\n"
        "    replicas: n\n"
        "    states:\n"
        "      - InDisk\n"
        "      - InMem: {after: 'tensor[i-1].InMem', effects: [{holds: bus, until: InGPU}]}\n"
        "      - InGPU: {after: 'tensor[i-1].InGPU'}\n"
        "refine: {tensor: {layout: safetensors, chunk: [InDisk, InMem, InGPU, Destroyed]}}\n"
    )
    spec, found = load(path)
    assert spec is not None and not found.items
    (effect,) = spec.components["chunk"].states[1].effects
    assert str(effect.until) == "chunk[i].InGPU"
    # Two chunks hold it at a time, as two tensors did before.
    assert [d.code for d in check(spec).diagnostics] == ["CF503"]


def test_only_orders_for_speed_are_bounds():
    spec, _ = load(LOADING)
    assert spec is not None
    marks = {
        f"{c.name}.{s.name} {d.ref}": d.bound
        for c in spec.components.values()
        for s in c.states
        for d in s.after
    }
    assert marks == {
        "chunk.InMem chunk[i-16].InMem": True,
        "chunk.InMem chunk[i-16].Destroyed": True,
        "chunk.InGPU chunk[i-16].InGPU": True,
        "chunk.Destroyed piece[self.pieces].Copied": False,
        "piece.Copied chunk[self.chunk].InGPU": False,
        "tensor.Loaded piece[self.pieces].Copied": False,
    }
    plan = compile_plan(spec)["transitions"]["chunk.InMem"]["after"]
    assert [entry.get("bound") for entry in plan] == [True, True]


def test_a_plan_whose_relations_nobody_gave_says_so():
    spec, _ = load(LOADING)
    assert spec is not None
    with pytest.raises(ChannelError, match=r"the relation chunk\.pieces is not known"):
        Plan.of(compile_plan(spec)).needs("chunk.Destroyed", 0)
