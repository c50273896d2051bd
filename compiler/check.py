"""Every check of the graph, in one run (paper section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from cfac.compiler.calm import calm
from cfac.compiler.chain import Placing, place, verify
from cfac.compiler.cycles import describe, find_cycle
from cfac.compiler.diagnostics import Diagnostic, Diagnostics, Note
from cfac.compiler.graph import build, self_waits
from cfac.compiler.hazards import check_hazards
from cfac.compiler.merge import check_merges, group_nodes
from cfac.compiler.model import Spec
from cfac.compiler.redundant import check_redundant
from cfac.compiler.schedule_checks import check_idle
from cfac.compiler.theorem1 import prove, witness


@dataclass(slots=True)
class CheckResult:
    """All findings, by position; ``order`` is the witness of Theorem 1, None if cyclic."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    order: list[str] | None = None

    @property
    def ok(self) -> bool:
        """Whether there is no error (warnings do not count)."""
        return all(item.severity != "error" for item in self.diagnostics)


def check(spec: Spec) -> CheckResult:
    """Theorem 1, Theorem 2, merges, layouts, redundant waits and hazards of a loaded spec."""
    with calm():
        return _check(spec)


def _check(spec: Spec) -> CheckResult:
    out = Diagnostics()
    graph = build(spec)
    loops = self_waits(graph)
    for edge in loops:
        node = graph.nodes[edge.target]
        out.error(
            "CF302",
            f"{node.label()} waits for itself",
            edge.span,
            notes=[Note(edge.reason)] if edge.reason else (),
            help="remove the wait; to run replicas one after the other write "
            f"{node.component}[i-1].{node.state}"
            if node.symbolic or node.index is not None
            else "remove the wait",
        )
    refs = [edge.ref for edge in loops if edge.ref is not None]
    if refs:
        graph = graph.without(refs)
    placing = place(spec, graph, out) if spec.chain else Placing()
    proof = prove(graph)
    blamed: set[int] = set()  # waits against the chain are reported once, with their cycle
    for members in proof.cyclic:
        cycle = find_cycle(graph, members)
        out.items.append(describe(graph, cycle, placing.contradicts))
        edges = [graph.edges[at] for at in cycle.edges]
        blamed |= {id(e.ref) for e in edges if e.ref is not None and placing.contradicts(e)}
    if spec.chain:
        verify(graph, placing, out, blamed)
    check_merges(graph, group_nodes(spec, graph, out), proof.cyclic, out, placing.contradicts)
    if proof.holds:
        check_idle(spec, graph, out)
        replicas = any(component.replicas is not None for component in spec.components.values())
        plain = build(spec, exact=False).without(refs) if replicas else graph
        check_redundant(spec, plain, out)
    if spec.refined:
        from cfac.compiler.layouts.proof import check_refinements

        check_refinements(spec, out)
    check_hazards(spec, graph, placing.classes, refs, out)
    order = witness(graph, proof) if proof.holds and not loops else None
    return CheckResult(out.sorted(), order)
