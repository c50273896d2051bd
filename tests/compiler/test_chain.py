"""Theorem 2: random chains against a brute-force linear-extension test, and each message."""

from __future__ import annotations

import dataclasses

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import specs

from build import component, ref, spec
from cfac.compiler.chain import place, verify
from cfac.compiler.check import check
from cfac.compiler.diagnostics import Diagnostic, Diagnostics
from cfac.compiler.expand import expand
from cfac.compiler.graph import build
from cfac.compiler.model import Spec

ORDER = {"CF314", "CF315", "CF316"}


def is_linear_extension(model: Spec, n: int) -> bool:
    """All stock pairs, related through auxiliary transitions only, are strictly ordered.

    Within one class a component's own order (paths without a dependency) is allowed.
    """
    place = {
        (r.component, r.state): number for number, entry in enumerate(model.chain) for r in entry
    }
    graph = expand(model, {"n": n, "m": n})
    digraph = nx.MultiDiGraph()
    digraph.add_nodes_from(range(len(graph.names)))
    for e in graph.edges:
        if not e.schedule:
            digraph.add_edge(e.source, e.target, waits=e.ref is not None)
    key = {i: (t.component, t.state) for i, t in enumerate(graph.transitions)}
    for source in digraph:
        if key[source] not in place:
            continue
        stack, seen = [(source, False)], set()
        while stack:
            node, waited = stack.pop()
            for _, target, waits in digraph.out_edges(node, data="waits"):
                reached = target, waited or waits
                if key[target] in place:
                    gap = place[key[target]] - place[key[source]]
                    if gap < 0 or (gap == 0 and reached[1]):
                        return False
                elif reached not in seen:
                    seen.add(reached)
                    stack.append(reached)
    return True


@st.composite
def chained(draw: st.DrawFn) -> Spec:
    model = draw(
        specs(
            indices=("*", "i-1", "i", "i+1"), aux=True, schedule=True, forward=draw(st.booleans())
        )
    )
    stock = [(c, s) for c, s in model.transitions() if not s.aux]
    # Start from an order in which the components take turns: often a linear extension.
    stock.sort(key=lambda item: (item[1].name, item[0].name))
    if draw(st.booleans()):
        stock = draw(st.permutations(stock))
    names = [f"{c.name}.{'*.' if c.replicas else ''}{s.name}" for c, s in stock]
    chain: list[list[str]] = []
    for name in names:
        if chain and draw(st.integers(0, 4)) == 0:
            chain[-1].append(name)
        else:
            chain.append([name])
    return dataclasses.replace(model, chain=tuple(tuple(map(ref, c)) for c in chain))


@given(chained())
@settings(max_examples=400, deadline=None)
def test_agrees_with_brute_force(model: Spec) -> None:
    out = Diagnostics()
    graph = build(model)
    verify(graph, place(model, graph, out), out)
    codes = {d.code for d in out}
    assert codes <= ORDER
    assert bool(codes) == (not is_linear_extension(model, 9))


def base(chain: str, *, schedule: str = "") -> Spec:
    return spec(
        component("core", {"Start": [], "Made": [], "Forked'": [], "Ready": ["worker.*.Ready"]}),
        component(
            "worker", {"Start": [], "Made": [f"{schedule}core.Forked"], "Ready": []}, "tp"
        ),
        chain=chain,
    )  # fmt: skip


GOOD = "core.Made worker.*.Made worker.*.Ready core.Ready"


def only(model: Spec, code: str) -> Diagnostic:
    found = [d for d in check(model).diagnostics if d.severity == "error"]
    assert [d.code for d in found] == [code], found
    assert found[0].help
    return found[0]


def test_a_good_chain() -> None:
    assert check(base(GOOD)).diagnostics == []
    assert check(base(GOOD.replace(" worker.*.Made", "|worker.*.Made"), schedule="~")).ok


def test_missing() -> None:
    found = only(base("core.Made worker.*.Made core.Ready"), "CF310")
    assert "worker.Ready" in found.message


def test_twice() -> None:
    only(base(GOOD + " core.Ready"), "CF311")


def test_auxiliary_and_initial() -> None:
    only(base(GOOD.replace("worker.*.Made", "core.Forked worker.*.Made")), "CF312")
    only(base("core.Start " + GOOD), "CF313")


def test_own_order() -> None:
    found = only(base("core.Made worker.*.Ready worker.*.Made core.Ready"), "CF314")
    assert "Ready comes after Made" in found.message


def test_opposite_order_through_an_auxiliary_state() -> None:
    model = base("worker.*.Made core.Made worker.*.Ready core.Ready")
    found = only(model, "CF315")
    assert "through core.Forked" in found.message
    assert found.span == model.components["worker"].states[1].after[0].ref.span
    assert len(found.notes) == 4
    assert found.notes[1].span == model.chain[0][0].span


def test_same_class() -> None:
    found = only(base("core.Made|worker.*.Made worker.*.Ready core.Ready"), "CF316")
    assert "one class" in found.message


def test_replicas_of_one_class() -> None:
    def model(mark: str) -> Spec:
        return spec(
            component("w", {"S": [], "A": [f"{mark}w[i-1].A"]}, "n"), chain="w.*.A"
        )  # fmt: skip

    found = only(model(""), "CF316")
    assert found.help is not None
    assert "schedule: true" in found.help
    assert check(model("~")).diagnostics == []


def test_replicas_of_one_class_through_auxiliary_states() -> None:
    model = spec(
        component("w", {"S": [], "A": ["w[i-1].X"], "X'": []}, "n"), chain="w.*.A"
    )  # fmt: skip
    assert "through w[i].X" in only(model, "CF316").message


def test_single_replicas_in_the_chain() -> None:
    worker = component("w", {"S": [], "A": ["w[i-1].A"]}, 2)
    assert check(spec(worker, chain="w[0].A w[1].A")).diagnostics == []
    only(spec(worker, chain="w[1].A w[0].A"), "CF315")
    assert "w[1].A" in only(spec(worker, chain="w[0].A"), "CF310").message
    only(spec(component("w", {"S": [], "A": []}, "n"), chain="w[0].A"), "CF317")


def test_no_chain_no_second_theorem() -> None:
    assert check(spec(component("w", {"S": [], "A": []}))).diagnostics == []
