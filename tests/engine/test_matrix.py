"""SIGTERM, SIGINT and SIGKILL of every process at every declared state, on real vLLM.

The whole matrix runs in ``make soak`` with two workers; a sample in ``make test``, with one
worker where none is signalled.  The outcomes go to
``soak/fast-start-faults.json`` and ``soak/process-tree-faults.json`` (under build/ where
no ``--summary`` is asked for).  Whatever is signalled, nothing of a run is left, and
nothing hangs for longer than 10 s.
"""

import signal
from pathlib import Path

import pytest
import signals
from real_engine import ROOT, tiny
from signals import GROUP, Case, Outcome
from summary import versions

from cfac.runtime.plan import split_label

SPECS = {name: ROOT / "specs" / "vllm" / f"{name}.yaml" for name in ("fast-start", "process-tree")}
ALL = [(name, case) for name, spec in SPECS.items() for case in signals.matrix(spec)]
SAMPLE = {
    "fast-start": {
        "frontend.ConfigReady-SIGINT",
        "core.Start-SIGKILL",
        "core.HandleReady-SIGKILL",
        "core.HandleReady-SIGTERM-to-frontend",
        "core.Configured-SIGTERM",
        "worker[0].Start-SIGTERM",
        "worker[1].Constructed-SIGKILL",
    },
    "process-tree": {
        "frontend.ClientBound-SIGKILL",
        "worker[1].Constructed-SIGTERM",
    },
}

#: From run_server on, vLLM's handlers end a start by KeyboardInterrupt.  Before, SIGTERM
#: has its default action.  Seen on stock vLLM 0.32, with signals to the frontend ...
STARTING = {signal.SIGTERM: -2, signal.SIGINT: -2, signal.SIGKILL: -9}
IMPORTING = STARTING | {signal.SIGTERM: -15}
#: ... and to any process of an idle server, which goes on as is said below: tested on
#: stock vLLM, too (test_matrix_stock.py).
IDLE = {
    ("frontend", signal.SIGTERM): 0,
    ("frontend", signal.SIGINT): 0,
    ("frontend", signal.SIGKILL): -9,
    ("core", signal.SIGTERM): 0,
    ("core", signal.SIGINT): 0,
    ("core", signal.SIGKILL): 0,
    ("worker[0]", signal.SIGTERM): 0,
    ("worker[0]", signal.SIGINT): 0,
    ("worker[0]", signal.SIGKILL): 0,
    ("worker[1]", signal.SIGTERM): 0,
    ("worker[1]", signal.SIGINT): 0,
    ("worker[1]", signal.SIGKILL): 0,
}
IDLE_SAMPLE = {("fast-start", "core", signal.SIGINT), ("process-tree", "worker[0]", signal.SIGKILL)}

#: From Configured on, while it constructs itself, the core's own handler notes a SIGTERM
#: or SIGINT and lets the start go on; then the core ends.  The frontend, which is up by
#: then, would wait for an answer of the dead core for ever, as stock vLLM 0.32 does.
PUTS_OFF = "Configured"


def is_put_off(spec: Path, case: Case) -> bool:
    """Whether the core ends only when it is up, which ends the frontend by SIGTERM."""
    states = [state for component, state in signals.spec_states(spec) if component == "core"]
    signalled = case.component == case.target == "core" and case.number != signal.SIGKILL
    return signalled and states.index(case.state) >= states.index(PUTS_OFF)


@pytest.fixture(scope="session")
def reports(report_folder):
    """reports(spec's name) -> the report on its cases."""

    def report(name):
        return signals.Report(report_folder / f"{name}-faults.json", versions())

    return report


def is_early(spec: Path, case: Case) -> bool:
    """Whether the signalled process is a child that no engine has asked for yet."""
    name, _ = split_label(case.component)
    return case.own and (name, case.state) in signals.not_asked_for(spec)


def exit_codes(spec: Path, case: Case) -> set[int]:
    """What the frontend may end with."""
    root = signals.root_of(spec)
    if case.target == GROUP:  # its own interrupt, or the end of its core: whatever comes first
        return {-2, 1}
    if is_put_off(spec, case):
        return {STARTING[signal.SIGTERM]}
    if case.target != root:
        return {1}
    if case.component != root:  # beside an early child it may not have its handlers yet
        early = (case.component, case.state) in signals.not_asked_for(spec)
        return {STARTING[case.number]} | ({IMPORTING[case.number]} if early else set())
    order = [state for component, state in signals.spec_states(spec) if component == root]
    importing = order.index(case.state) < order.index("ConfigReady")
    return {(IMPORTING if importing else STARTING)[case.number]}


def check(spec: Path, case: Case, outcome: Outcome, log: str) -> None:
    """What must be seen, whatever the case."""
    if is_early(spec, case):
        assert outcome.end == "serves", (outcome, log)
        assert outcome.fell_back
        assert outcome.failed is None
        return
    assert outcome.end == "ended", (outcome, log)
    assert outcome.left == []
    assert outcome.hang <= outcome.limit, outcome
    assert outcome.exit_code in exit_codes(spec, case), (outcome, log)
    if case.number == signal.SIGKILL:
        assert outcome.failed is not None, log
        assert outcome.failed.startswith(f"{case.target} failed: "), outcome
        assert outcome.failed.endswith(f" in state {case.state}"), outcome
        # of a root that died before its owner was up, nobody can say how
        seen = "ended by signal 9 (SIGKILL)" in outcome.failed
        assert seen or (case.component, case.state) == ("frontend", "Start"), outcome


def run_case(serve, patched, reports, name, case, workers=2):
    spec = SPECS[name]
    server = serve(patched(spec), tensor_parallel=workers, environment=signals.hold(case, spec))
    outcome = signals.strike(server, case, signals.root_of(spec))
    if outcome.end == "serves":
        server.stop()
        outcome.exit_code = server.process.returncode
        outcome.left = signals.left_after(server)
    reports(name).add(outcome)
    check(spec, case, outcome, server.log[-6000:])
    if outcome.end == "serves":
        assert (outcome.exit_code, outcome.left) == (0, [])


def named(cases):
    return [pytest.param(name, case, id=f"{name}:{case}") for name, case in cases]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "case"), named(ALL))
def test_a_signal_at_a_state(serve, patched, reports, name, case):
    run_case(serve, patched, reports, name, case)


@pytest.mark.parametrize(
    ("name", "case"), named((name, case) for name, case in ALL if str(case) in SAMPLE[name])
)
def test_a_signal_at_a_state_sampled(serve, patched, reports, name, case):
    workers = 2 if case.component.startswith("worker") else 1
    run_case(serve, patched, reports, name, case, workers)


def test_the_sample_exists():
    """A state may be renamed: its sample must not disappear with it."""
    known = {name: {str(case) for other, case in ALL if other == name} for name in SPECS}
    assert all(SAMPLE[name] <= known[name] for name in SPECS)


def run_idle(serve, patched, reports, name, component, number, workers=2):
    server = serve(patched(SPECS[name]), tensor_parallel=workers)
    server.wait_ready()
    server.complete()
    pid = tiny.wait_for_state(server.runs, component, "Ready")
    case = Case(component, "idle", number, component)
    outcome = signals.watch(server, case, pid)
    reports(name).add(outcome)
    assert outcome.end == "ended", (outcome, server.log[-6000:])
    assert outcome.exit_code == IDLE[(component, number)], (outcome, server.log[-6000:])
    assert outcome.hang <= outcome.limit, outcome
    if number == signal.SIGKILL:
        assert outcome.failed is not None
        assert outcome.failed.startswith(f"{component} failed: ")
        assert outcome.failed.endswith("in state Ready")


IDLE_ALL = [(name, component, number) for name in SPECS for component, number in IDLE]


def named_idle(cases):
    return [pytest.param(*case, id=f"{case[0]}:{case[1]}-{case[2].name}") for case in cases]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "component", "number"), named_idle(IDLE_ALL))
def test_a_signal_when_idle(serve, patched, reports, name, component, number):
    run_idle(serve, patched, reports, name, component, number)


@pytest.mark.parametrize(("name", "component", "number"), named_idle(sorted(IDLE_SAMPLE)))
def test_a_signal_when_idle_sampled(serve, patched, reports, name, component, number):
    run_idle(serve, patched, reports, name, component, number, workers=1)
