"""The passes of ``cfac analyze``, against networkx, simulations and recomputation."""

from __future__ import annotations

import itertools
import time
from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import specs

from build import component, spec
from cfac.compiler.analyze import Query, analyze, paths, text
from cfac.compiler.analyze.births import declared
from cfac.compiler.analyze.cores import schedule, shared
from cfac.compiler.analyze.network import build as build_network
from cfac.compiler.analyze.paths import Dag
from cfac.compiler.api import load
from cfac.compiler.check import check
from cfac.compiler.expand import expand

MS = 1_000_000


@st.composite
def dags(draw, largest=9):
    """A graph in any numbering, parallel edges included, and small costs, many of them equal."""
    count = draw(st.integers(1, largest))
    number = draw(st.permutations(range(count)))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=16)) if pairs else []
    dag = Dag(count, [number[a] for a, _ in edges], [number[b] for _, b in edges])
    return dag, draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))


def longest(count, edges, costs):
    """networkx's longest path, each node's cost on the edges into it."""
    graph = nx.DiGraph()
    graph.add_edges_from((("begin", n) for n in range(count)), weight=0)
    for node in range(count):
        graph.edges["begin", node]["weight"] = costs[node]
    graph.add_edges_from(edges)
    for source, target in edges:
        graph.edges[source, target]["weight"] = costs[target]
    return nx.dag_longest_path_length(graph)


def pairs(dag, without=()):
    both = enumerate(zip(dag.sources, dag.targets, strict=True))
    return [pair for number, pair in both if number not in without]


@settings(deadline=None)
@given(dags())
def test_the_longest_path_is_that_of_networkx(case):
    dag, costs = case
    assert max(paths.ends(dag, costs)) == longest(dag.count, pairs(dag), costs)
    assert max(paths.tails(dag, costs)) == max(paths.ends(dag, costs))


@settings(deadline=None)
@given(dags())
def test_the_critical_path_is_a_path_that_takes_all_the_time(case):
    dag, costs = case
    ends = paths.ends(dag, costs)
    path = paths.critical_path(dag, ends, costs, own=())
    assert path[0][1] is None
    for (before, _), (node, edge) in itertools.pairwise(path):
        assert (dag.sources[edge], dag.targets[edge]) == (before, node)
    assert sum(costs[node] for node, _ in path) == max(ends)


@settings(deadline=None)
@given(dags())
def test_slack_is_how_much_longer_a_node_may_take(case):
    dag, costs = case
    ends, tails = paths.ends(dag, costs), paths.tails(dag, costs)
    total = max(ends)
    for node in range(dag.count):
        slack = total - (ends[node] - costs[node]) - tails[node]
        changed = [cost + (slack if n == node else 0) for n, cost in enumerate(costs)]
        assert max(paths.ends(dag, changed)) == total
        changed[node] += 1
        assert max(paths.ends(dag, changed)) == total + 1


@settings(deadline=None)
@given(dags())
def test_falls_are_what_recomputing_gives(case):
    dag, costs = case
    ends = paths.ends(dag, costs)
    falls = paths.falls(dag, costs, ends, paths.tails(dag, costs))
    total = max(ends)
    for node in range(dag.count):
        changed = [0 if n == node else cost for n, cost in enumerate(costs)]
        assert falls.nodes[node] == total - longest(dag.count, pairs(dag), changed), node
    for edge in range(len(dag.sources)):
        assert falls.edges[edge] == total - longest(dag.count, pairs(dag, {edge}), costs), edge


def clockwork(dag, costs, busy, cores):
    """The list schedule's rule, tick by tick."""
    rest, begins = list(costs), [-1] * dag.count
    ahead, done, now = paths.tails(dag, costs), set(), 0
    while len(done) < dag.count:
        while True:  # what takes no time, at once
            ready = [
                n for n in range(dag.count)
                if begins[n] < 0 and all(dag.sources[e] in done for e in dag.into[n])
            ]  # fmt: skip
            free = [n for n in ready if not busy[n] or not costs[n]]
            if not free:
                break
            for n in free:
                begins[n] = now
            done |= {n for n in free if not costs[n]}
            if not any(not costs[n] for n in free):
                break
        ready = [n for n in ready if begins[n] < 0]
        used = sum(1 for n in range(dag.count) if begins[n] >= 0 and n not in done and busy[n])
        for n in sorted(ready, key=lambda n: (-ahead[n], n))[: cores - used]:
            begins[n] = now
        if len(done) < dag.count:
            now += 1
            for n in range(dag.count):
                if begins[n] >= 0 and n not in done:
                    rest[n] -= 1
                    if not rest[n]:
                        done.add(n)
    return begins, now


@settings(deadline=None)
@given(dags(7), st.integers(1, 4), st.data())
def test_the_list_schedule_is_the_rule_tick_by_tick(case, cores, data):
    dag, costs = case
    busy = data.draw(st.lists(st.booleans(), min_size=dag.count, max_size=dag.count))
    found = schedule(dag, costs, busy, cores)
    begins, end = clockwork(dag, costs, busy, cores)
    assert (found.begins, found.end) == (begins, end)


@settings(deadline=None)
@given(dags(), st.integers(1, 4))
def test_a_schedule_is_possible_and_within_grahams_bounds(case, cores):
    dag, costs = case
    busy = [True] * dag.count
    found = schedule(dag, costs, busy, cores)
    path = max(paths.ends(dag, costs))
    for source, target in pairs(dag):
        assert found.begins[source] + costs[source] <= found.begins[target]
    for now in range(found.end):
        running = [n for n in range(dag.count)
                   if found.begins[n] <= now < found.begins[n] + costs[n]]  # fmt: skip
        assert len(running) <= cores
    assert found.cpu == sum(costs)
    assert found.bound == max(path, -(-sum(costs) // cores)) <= found.end
    assert found.end <= Fraction(sum(costs), cores) + (1 - Fraction(1, cores)) * path


def fluid(dag, costs, busy, cores):
    """Equal shares, in exact fractions: who runs until the next one ends."""
    rest = [Fraction(cost) for cost in costs]
    done: set[int] = set()
    now = Fraction(0)
    while len(done) < dag.count:
        ready = [n for n in range(dag.count)
                 if n not in done and all(dag.sources[e] in done for e in dag.into[n])]  # fmt: skip
        on_cores = [n for n in ready if busy[n] and rest[n]]
        share = min(Fraction(1), Fraction(cores, len(on_cores))) if on_cores else Fraction(1)
        speed = {n: share if n in on_cores else Fraction(1) for n in ready}
        step = min(rest[n] / speed[n] for n in ready)
        now += step
        for n in ready:
            rest[n] -= step * speed[n]
        done |= {n for n in ready if not rest[n]}
    return now


@settings(deadline=None)
@given(dags(), st.integers(1, 4), st.data())
def test_shared_cores_are_those_of_exact_fractions(case, cores, data):
    dag, costs = case
    costs = [cost * MS for cost in costs]
    busy = data.draw(st.lists(st.booleans(), min_size=dag.count, max_size=dag.count))
    end = fluid(dag, costs, busy, cores)
    assert abs(shared(dag, costs, busy, cores) - end) <= 1
    everybody = [True] * dag.count
    path, cpu = max(paths.ends(dag, costs)), sum(costs)
    found = fluid(dag, costs, everybody, cores)
    assert max(path, Fraction(cpu, cores)) <= found
    assert found <= Fraction(cpu, cores) + (1 - Fraction(1, cores)) * path
    assert shared(dag, costs, everybody, 1) == cpu
    assert shared(dag, costs, everybody, dag.count) == path


@settings(deadline=None)
@given(dags())
def test_one_core_takes_the_sum_and_many_the_longest_path(case):
    dag, costs = case
    busy = [True] * dag.count
    assert schedule(dag, costs, busy, 1).end == sum(costs)
    assert schedule(dag, costs, busy, dag.count).end == max(paths.ends(dag, costs))
    assert schedule(dag, costs, [False] * dag.count, 1).end == max(paths.ends(dag, costs))


# -- whole specs ----------------------------------------------------------------------


def acyclic(found):
    result = check(found)
    assume(result.order is not None)
    return found


@settings(deadline=None)
@given(specs(when=True, aux=True), st.integers(0, 3), st.data())
def test_replicas_and_templates_against_networkx(found, count, data):
    """From the spec's own words: nodes by replica, edges by reference, costs by --set."""
    acyclic(found)
    counts = dict.fromkeys(found.params, count)
    names = [f"{c.name}.{s.name}" for c, s in found.transitions() if c.when is None]
    chosen = {name: data.draw(st.integers(0, 4)) for name in names}
    present = {c.name: [None] if c.replicas is None else list(range(count))
               for c in found.components.values()}  # fmt: skip
    chosen = {name: cost for name, cost in chosen.items() if present[name.partition(".")[0]]}
    graph = nx.DiGraph()
    for one in found.components.values():
        for place in present[one.name]:
            for before, state in zip(one.states, one.states[1:], strict=False):
                node = (one.name, place, state.name)
                cost = chosen.get(f"{one.name}.{state.name}", 0)
                graph.add_edge("begin", node, weight=cost)
                if before is not one.states[0]:
                    graph.add_edge((one.name, place, before.name), node, weight=cost)
                for dependency in state.after:
                    ref = dependency.ref
                    index = ref.index
                    places = {
                        "none": [None],
                        "all": present[ref.component],
                        "offset": [(place or 0) + (index.value or 0)],
                    }[index.kind]
                    for at in set(places) & set(present[ref.component]):
                        graph.add_edge((ref.component, at, ref.state), node, weight=cost)
    query = Query(params=counts, settings=tuple(chosen.items()))
    wanted = nx.dag_longest_path_length(graph) if graph else 0
    assert analyze(found, query).times.predicted == wanted


@settings(deadline=None)
@given(specs(), st.data())
def test_blame_and_dependencies_of_a_spec_are_what_recomputing_gives(found, data):
    acyclic(found)
    counts = dict.fromkeys(found.params, 2)
    names = [f"{c.name}.{s.name}" for c, s in found.transitions()]
    chosen = {name: data.draw(st.integers(0, 4)) for name in names}

    def total(without=(), zero=None):
        settings = tuple((n, 0 if n == zero else c) for n, c in chosen.items())
        return analyze(found, Query(counts, None, settings, without)).times.predicted

    made = analyze(found, Query(counts, None, tuple(chosen.items())))
    blame = {item.name.replace(".*", ""): item.fall for item in made.blame}
    for name in names:
        assert blame.get(name, 0) == total() - total(zero=name), name
    for item in made.dependencies:
        text = f"{item.of}:{item.name}"
        assert item.fall == total() - total(without=(text,)), text


stages = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5)


@settings(deadline=None)
@given(stages, st.integers(1, 3))
def test_the_papers_formula(stages, workers):
    """Section 4.1: T_CFA = max_i {T_i^I + sum_{j>=i} T_j^D}, T_vLLM = sum_i T_i; T_1^D = 0."""
    stages[0] = (stages[0][0], 0)
    names = [f"p{number}" for number in range(len(stages))]
    parts, settings, chain = [], [], []
    for number, name in enumerate(names):
        last = number == len(names) - 1
        waits = [f"{names[number - 1]}.Ready"] if number else []
        many = "n" if last and number else None
        parts.append(component(name, {"S": [], "Constructed": [], "Ready": waits}, many))
        star = ".*" if many else ""
        chain.append(f"{name}{star}.Constructed|{name}{star}.Ready")
        settings += [(f"{name}.Constructed", stages[number][0]), (f"{name}.Ready",
                     stages[number][1])]  # fmt: skip
    made = spec(*parts, chain=" ".join(chain))
    found = analyze(made, Query({"n": workers}, None, tuple(settings)))
    independent = [own for own, _ in stages]
    dependent = [rest for _, rest in stages]
    assert found.times.chain == sum(independent) + sum(dependent)
    assert found.times.predicted == max(
        independent[i] + sum(dependent[i:]) for i in range(len(stages))
    )
    assert found.times.predicted <= found.times.chain


def test_own_order_counts_as_no_wait_among_equals():
    made = spec(
        component("a", {"S": [], "A": [], "B": ["b.A"]}), component("b", {"S": [], "A": []})
    )
    settings = (("a.A", 2), ("b.A", 2), ("a.B", 1))
    steps = analyze(made, Query(settings=settings)).path
    assert [(step.why, step.of) for step in steps] == [("first", None), ("own", "a.A")]


def tensors(count):
    """The paper's pipeline: each stage of each chunk after that of the last one."""
    chunk = component(
        "chunk", {"S": [], "InMem": ["chunk[i-1].InMem"], "InGPU": ["chunk[i-1].InGPU"]}, "n"
    )
    join = component("model", {"S": [], "Loaded": ["chunk.*.InGPU"]})
    made = spec(chunk, join, chain="chunk.*.InMem chunk.*.InGPU model.Loaded")
    settings = (("chunk.InMem", 2), ("chunk.InGPU", 3), ("model.Loaded", 1))
    begun = time.process_time()
    found = analyze(made, Query({"n": count}, None, settings, cores=2))
    return found, time.process_time() - begun


def test_a_hundred_thousand_transitions_take_seconds():
    _, few = tensors(6_250)
    found, taken = tensors(50_000)
    assert len(found.rows) == 100_001
    assert found.times.predicted == 2 + 3 * 50_000 + 1
    assert len(found.path) == 50_002
    lines = text.render(found).splitlines()
    assert len(lines) < 120
    path = lines[lines.index("") + 2 :]
    assert [line.split("  ")[0] for line in path[:3]] == [
        "chunk[0].InMem", "chunk[0].InGPU … chunk[49999].InGPU", "model.Loaded",
    ]  # fmt: skip
    assert path[1].split()[3:7] == ["150.000", "us", "150.002", "us"]
    blame = {item.name: item.fall for item in found.blame}
    assert blame["chunk.*.InGPU"] == found.times.predicted - 2 * 50_000 - 1
    assert taken < 32 * few  # eight times the graph: a quadratic pass would take 64 times as long


def test_a_long_path_is_shown_by_its_two_ends():
    made = spec(component("a", {f"S{n}": [] for n in range(201)}))
    found = analyze(made, Query(settings=tuple((f"a.S{n}", 1) for n in range(1, 201))))
    lines = text.render(found).splitlines()
    assert "... 120 more (-f json has them)" in lines
    shown = [line.split()[0] for line in lines if line.startswith("a.S")]
    assert shown == [f"a.S{n}" for n in (*range(1, 41), *range(161, 201))]


def test_few_replicas_in_a_row_are_shown_each():
    made = spec(component("a", {"S": [], "A": ["a[i-1].A"]}, 4))
    found = analyze(made, Query(settings=(("a.A", 1),)))
    lines = [line.split("  ")[0] for line in text.render(found).splitlines()]
    assert lines[lines.index("critical path") + 1 :][:4] == ["a[0].A", "a[1].A", "a[2].A", "a[3].A"]


def test_merged_groups_unite_their_waits_and_take_as_long_as_their_members():
    made = spec(
        component("a", {"S": [], "A": [], "B": []}),
        component("b", {"S": [], "A": [], "B": ["a.A"], "C": []}),
        merges={"both": ["a.B", "b.B"]},
    )
    settings = tuple((name, cost * MS) for name, cost in
                     [("a.A", 1), ("a.B", 2), ("b.A", 5), ("b.B", 4), ("b.C", 1)])  # fmt: skip
    found = analyze(made, Query(settings=settings))
    rows = {row.name: row for row in found.rows}
    group = rows["group both"]
    assert group.members == ("a.B", "b.B")
    assert (group.begin, group.cost) == (5 * MS, 6 * MS)  # after b.A, which a.B alone is not
    assert found.times.predicted == 12 * MS
    set_ = analyze(made, Query(settings=(*settings, ("both", 3 * MS))))
    assert set_.times.predicted == 9 * MS


def test_groups_of_each_replica_and_of_all():
    def made(members):
        worker = component("w", {"S": [], "A": [], "B": [], "C": []}, "n")
        return spec(worker, merges={"g": members})

    each = analyze(made(["w[i].A", "w[i].B"]), Query({"n": 2}, settings=(("w.A", 1), ("w.B", 2))))
    assert [row.name for row in each.rows if "group" in row.name] == ["group g[0]", "group g[1]"]
    assert each.times.predicted == 3
    all_ = analyze(made(["w.*.A"]), Query({"n": 2}, settings=(("w.A", 1), ("w.B", 2))))
    assert all_.times.predicted == 2 * 1 + 2


@settings(deadline=None)
@given(specs(), st.integers(0, 2))
def test_edges_keep_the_order_of_the_expanded_graph(found, count):
    acyclic(found)
    expanded = expand(found, dict.fromkeys(found.params, count))
    network = build_network(found, expanded, declared(expanded))
    for number in range(len(network.origin)):
        link = network.link(number)
        source, target = network.dag.sources[number], network.dag.targets[number]
        assert (link.source, link.target) == (source, target)
        assert (link.kind == "own") == (not link.of)
    assert len(network.dag.order) == network.dag.count


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_the_chain_on_cores(cores):
    made = spec(
        component("a", {"S": [], "A": []}),
        component("w", {"S": [], "A": [], "B": []}, "n"),
        chain="a.A w.*.A|w.*.B",
    )
    settings = (("a.A", 1), ("w.A", 2), ("w.B", 2))
    found = analyze(made, Query({"n": 3}, settings=settings, cores=cores))
    assert found.times.chain == 1 + 4
    assert found.on_cores.listed.chain == 1 + {1: 12, 2: 6, 3: 4}[cores]
    assert found.on_cores.shared.chain == 1 + {1: 12, 2: 6, 3: 4}[cores]


INHERITS = """
apiVersion: cfac/v1
kind: StartupGraph
name: inherits
components:
  front: {states: [Start, {Common: {cost: 3s}}, {Config: {cost: 1s}}]}
  core:
    process: {spawned_by: front, strategy: {fork: front.Common}%s}
    states: [Start, {Constructed: {cost: 5s}}, {Ready: {after: front.Config, cost: 1s}}]
chain: [front.Common, front.Config, core.Constructed, core.Ready]
"""


@pytest.mark.parametrize(
    ("aliases", "predicted"), [("", 9), (", aliases: {core.Constructed: front.Common}", 5)]
)
def test_what_a_fork_inherits_costs_nothing_after_it(tmp_path, aliases, predicted):
    (tmp_path / "spec.yaml").write_text(INHERITS % aliases)
    loaded, diagnostics = load(tmp_path / "spec.yaml")
    assert not diagnostics.errors
    found = analyze(loaded, Query())
    assert (found.times.chain, found.times.predicted) == (10_000 * MS, predicted * 1000 * MS)
    set_ = analyze(loaded, Query(settings=(("core.Constructed", 2000 * MS),)))
    assert set_.times.predicted == 6000 * MS
