"""Where ``cfac analyze`` takes costs from: runs, the spec, the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from recorded_runs import component, plan, write

from build import component as part
from build import spec
from cfac.compiler.analyze import Query, SelectionError, analyze, record, total
from cfac.compiler.analyze.select import duration
from cfac.compiler.api import load
from cfac.runtime.errors import ChannelError
from cfac.runtime.history import read_run

MS = 1_000_000
STOCK = """
apiVersion: cfac/v1
kind: StartupGraph
name: stock
params: {n: {type: int, default: 1}}
components:
  front: {states: [Start, Config, {Ready: {after: core.Ready}}]}
  core:
    process: {spawned_by: front}
    states: [Start, Constructed, {Ready: {after: [front.Config, "worker.*.Ready"]}}]
  worker:
    replicas: n
    process: {spawned_by: core}
    states: [Start, Ready]
chain: [front.Config, core.Constructed, worker.*.Ready, core.Ready, front.Ready]
"""
OVERLAY = """
apiVersion: cfac/v1
kind: StartupGraph
name: overlay
include: stock.yaml
components:
  core:
    process: {strategy: prespawn}
    states: [Start, {Imported: {aux: true, does: {import: json}}}, {Forked: {aux: true}}, Constructed, Ready]
  worker:
    process: {strategy: prespawn}
    states: [Start, {Imported: {aux: true, does: {import: json}}}, {More: {aux: true, does: {import: json}}}, Ready]
"""  # noqa: E501


@pytest.fixture
def specs(tmp_path):
    (tmp_path / "stock.yaml").write_text(STOCK)
    (tmp_path / "overlay.yaml").write_text(OVERLAY)
    found = []
    for name in ("stock", "overlay"):
        loaded, diagnostics = load(tmp_path / f"{name}.yaml")
        assert not diagnostics.errors, [d.message for d in diagnostics]
        found.append(loaded)
    return found


def stock_run(folder, workers=1, slow=1, tail=()):
    """Each event's time in ms: front 1-10, core 12-22, workers 23-33 (and on), core 50-54."""
    made = plan(
        {"front": component(["Start", "Config", "Ready"]),
         "core": component(["Start", "Constructed", "Ready"]),
         "worker": component(["Start", "Ready"], "n")},
        after={"front.Ready": ["core.Ready"], "core.Ready": ["front.Config", "worker.*.Ready"]},
        params={"n": workers},
    )  # fmt: skip
    steps = [(1, "publish front.Start"), (1 + 9 * slow, "publish front.Config"),
             (12, "publish core.Start"), (22, "publish core.Constructed")]  # fmt: skip
    for at in range(workers):
        steps += [
            (23 + at, f"publish worker[{at}].Start"),
            (33 + 3 * at, f"publish worker[{at}].Ready"),
        ]
    steps += [(50, "begin core.Ready"), (54, "publish core.Ready"),
              (55, "begin front.Ready"), (56, "publish front.Ready")]  # fmt: skip
    return read_run(write(folder, made, [*steps, *tail]))


def costs(found, ms=True):
    return {row.name: (row.cost / MS if ms else row.cost, row.source) for row in found.rows}


def test_a_runs_costs_are_begin_to_publish(specs, tmp_path):
    history = stock_run(tmp_path / "run")
    found = analyze(specs[0], Query(recorded=record([history])))
    assert costs(found) == {
        "front.Config": (9, "run"), "front.Ready": (1, "run"),
        "core.Constructed": (10, "run"), "core.Ready": (4, "run"), "worker[0].Ready": (10, "run"),
    }  # fmt: skip
    assert found.times.chain == (9 + 10 + 10 + 4 + 1) * MS
    assert found.times.predicted == (10 + 4 + 1) * MS
    assert total(history) == 55 * MS
    assert not found.missing


def test_the_median_of_several_runs(specs, tmp_path):
    runs = [stock_run(tmp_path / str(slow), slow=slow) for slow in (3, 1, 2)]
    found = analyze(specs[0], Query(recorded=record(runs)))
    assert costs(found)["front.Config"] == (18, "run")
    assert [run.total for run in found.runs] == [55 * MS] * 3


def test_parameters_come_from_the_run_and_yield_to_the_query(specs, tmp_path):
    recorded = record([stock_run(tmp_path / "run", workers=2)])
    found = analyze(specs[0], Query(recorded=recorded))
    assert found.params == {"n": 2}
    assert costs(found)["worker[1].Ready"] == (12, "run")
    more = costs(analyze(specs[0], Query({"n": 3}, recorded)))
    assert more["worker[2].Ready"] == (11, "run")  # was not there: the median of the others
    assert more["worker[0].Ready"] == (10, "run")
    fewer = analyze(specs[0], Query({"n": 0}, recorded))
    assert set(costs(fewer)) == {"front.Config", "front.Ready", "core.Constructed", "core.Ready"}
    assert fewer.times.chain == (9 + 10 + 4 + 1) * MS
    with pytest.raises(SelectionError, match="n is -1"):
        analyze(specs[0], Query({"n": -1}, recorded))


def test_work_of_auxiliary_states_takes_its_part_of_the_stock_state(specs, tmp_path):
    recorded = record([stock_run(tmp_path / "run")])
    found = analyze(specs[1], Query(recorded=recorded))
    assert costs(found) == {
        "front.Config": (9, "run"), "front.Ready": (1, "run"),
        "core.Imported": (10, "taken"), "core.Forked": (0, "none"),
        "core.Constructed": (0, "left"), "core.Ready": (4, "run"),
        "worker[0].Imported": (10, "taken"), "worker[0].More": (0, "taken"),
        "worker[0].Ready": (0, "left"),
    }  # fmt: skip
    assert found.missing == ["core.Forked"]
    assert found.times.chain == 34 * MS  # the stock engine does that work too
    assert found.times.predicted == 15 * MS


@pytest.mark.parametrize(("setting", "imported", "left", "chain"), [(4, 4, 6, 34), (15, 15, 0, 39)])
def test_a_set_part_leaves_the_remainder(specs, tmp_path, setting, imported, left, chain):
    recorded = record([stock_run(tmp_path / "run")])
    settings = (("core.Imported", setting * MS),)
    found = analyze(specs[1], Query(recorded=recorded, settings=settings))
    assert costs(found)["core.Imported"] == (imported, "set")
    assert costs(found)["core.Constructed"] == (left, "left")
    assert found.times.chain == chain * MS
    assert (found.before.predicted, found.before.chain) == (15 * MS, 34 * MS)


def test_two_works_share_and_a_set_stock_state_is_as_set(specs, tmp_path):
    recorded = record([stock_run(tmp_path / "run")])
    settings = (("worker.*.More", 3 * MS), ("core.Constructed", 7 * MS))
    found = costs(analyze(specs[1], Query(recorded=recorded, settings=settings)))
    assert found["worker[0].Imported"] == (7, "taken")
    assert found["worker[0].Ready"] == (0, "left")
    assert found["core.Constructed"] == (7, "set")
    assert found["core.Imported"] == (10, "taken")


def test_a_run_with_the_auxiliary_states_tells_their_own_costs(specs, tmp_path):
    made = plan({"core": component(["Start", "Imported", "Forked", "Constructed", "Ready"])})
    steps = [(1, "publish core.Start"), (4, "publish core.Imported"), (5, "publish core.Forked"),
             (11, "publish core.Constructed")]  # fmt: skip
    recorded = record([read_run(write(tmp_path / "run", made, steps))])
    found = costs(analyze(specs[1], Query(recorded=recorded)))
    assert [found[f"core.{s}"] for s in ("Imported", "Forked", "Constructed", "Ready")] == [
        (3, "run"), (1, "run"), (6, "run"), (0, "none"),
    ]  # fmt: skip


def test_costs_of_the_spec_stand_as_they_are_and_yield_to_a_run(tmp_path):
    states = part("core", {"S": [], "Work'": [], "A": [], "B": []})
    given = {"Work": 0.002, "A": 0.003, "B": 0.004}
    made = spec(
        replace(states, states=tuple(replace(s, cost=given.get(s.name), imports=("json",) if s.aux
                                     else ()) for s in states.states)),
        chain="core.A core.B",
    )  # fmt: skip
    found = analyze(made)
    assert costs(found) == {"core.Work": (2, "spec"), "core.A": (3, "spec"), "core.B": (4, "spec")}
    assert found.times == found.times.__class__(9 * MS, 9 * MS)
    run = plan({"core": component(["S", "A", "B"])})
    steps = [(1, "publish core.S"), (11, "publish core.A")]
    recorded = record([read_run(write(tmp_path / "run", run, steps))])
    assert costs(analyze(made, Query(recorded=recorded))) == {
        "core.Work": (2, "spec"), "core.A": (8, "left"), "core.B": (4, "spec"),
    }  # fmt: skip


def test_idle_work_is_none_of_the_following_state(tmp_path):
    core = part("core", {"S": [], "Idle'": [], "A": ["x.A"]})
    waited = core.states[2].after[0].ref
    states = tuple(
        replace(s, imports=("json",), idle_while=waited) if s.aux else s for s in core.states
    )
    made = spec(replace(core, states=states), part("x", {"S": [], "A": []}))
    run = plan({"core": component(["S", "A"])}, after={"core.A": ["x.A"]})
    run["components"]["x"] = component(["S", "A"])
    run["transitions"]["x.A"] = {**run["transitions"]["core.A"], "after": []}
    steps = [(1, "publish core.S"), (5, "begin core.A"), (11, "publish core.A")]
    recorded = record([read_run(write(tmp_path / "run", run, steps))])
    found = analyze(made, Query(recorded=recorded))
    assert costs(found)["core.Idle"] == (0, "none")
    assert costs(found)["core.A"] == (6, "run")
    assert found.missing == ["core.Idle", "x.A"]


def test_of_a_child_that_was_given_up_the_engines_own_start_counts(tmp_path):
    made = plan({"core": component(["S", "A"])})
    steps = [(1, "publish core.S"), (3, "publish core.A"), (4, {"e": "fallback", "c": "core"}),
             (10, "publish core.S"), (17, "publish core.A")]  # fmt: skip
    recorded = record([read_run(write(tmp_path / "run", made, steps))])
    assert list(recorded.costs.replicas.values()) == [7 * MS]


def test_the_end_of_a_process_is_no_part_of_its_start(tmp_path):
    made = plan({"core": component(["S", "A", "Gone"])})
    made["transitions"]["core.Gone"]["exit"] = True
    steps = [(1, "publish core.S"), (3, "publish core.A"), (9000, "publish core.Gone")]
    history = read_run(write(tmp_path / "run", made, steps))
    assert total(history) == 2 * MS
    assert [t.state for t in record([history]).costs.replicas] == ["A"]


def test_members_of_a_group_that_cfac_run_merged_share_its_time(tmp_path):
    made = plan({"a": component(["S", "A"]), "b": component(["S", "A"])})
    of = [{"component": c, "index": ["none", None], "state": "A"} for c in "ab"]
    made["groups"] = {"both": {"each": False, "of": of}}
    steps = [(1, "publish a.S"), (1, "publish b.S"), (2, "begin a.A"), (2, "begin b.A"),
             (9, "publish a.A"), (10, "publish b.A")]  # fmt: skip
    history = read_run(write(tmp_path / "run", made, steps))
    merged = spec(
        part("a", {"S": [], "A": []}), part("b", {"S": [], "A": []}),
        merges={"both": ["a.A", "b.A"]},
    )  # fmt: skip
    assert analyze(merged, Query(recorded=record([history]))).times.predicted == 8 * MS
    made["engine"] = {"package": "tiny", "versions": "", "unsupported": []}
    (tmp_path / "run" / "plan.json").write_text(json.dumps(made))
    history = read_run(tmp_path / "run")  # an engine merges nothing: each has its own
    assert analyze(merged, Query(recorded=record([history]))).times.predicted == (7 + 8) * MS


def test_a_run_without_a_plan_tells_nothing(tmp_path):
    history = read_run(write(tmp_path / "run", None, [(1, "publish a.S")]))
    with pytest.raises(ChannelError, match="no plan"):
        record([history])


# -- notes ---------------------------------------------------------------------------


def test_a_fork_of_what_was_recorded_unforked_is_an_upper_bound(tmp_path):
    text = OVERLAY.replace("strategy: prespawn", "strategy: {fork: front.Config}", 1)
    (tmp_path / "stock.yaml").write_text(STOCK)
    (tmp_path / "overlay.yaml").write_text(text)
    overlay, diagnostics = load(tmp_path / "overlay.yaml")
    assert not diagnostics.errors
    run = stock_run(tmp_path / "run")
    (note,) = analyze(overlay, Query(recorded=record([run]))).notes
    assert note.startswith("core: forked") and "upper bound" in note
    assert run.plan is not None
    run.plan.components["core"]["process"] = {"strategy": {"fork": ["front", "Config"]}}
    assert analyze(overlay, Query(recorded=record([run]))).notes == []
    run.info["observe"] = True
    assert analyze(overlay, Query(recorded=record([run]))).notes == [note]


def test_runs_that_differ_are_told_apart(specs, tmp_path):
    first, other = stock_run(tmp_path / "a"), stock_run(tmp_path / "b", workers=2)
    half = read_run(write(tmp_path / "c", plan({"front": component(["Start", "Config"])}),
                          [(1, "publish front.Start")]))  # fmt: skip
    for number, history in enumerate((first, other, half)):
        history.info["id"] = f"run-{number}"
    found = analyze(specs[1], Query(recorded=record([first, other, half]))).notes
    assert found == [
        "run run-2 did not reach front.Config",
        "run run-1 has other parameters than run-0, whose are used",
        "run run-2 has other parameters than run-0, whose are used",
    ]


def test_a_state_that_this_start_does_not_pass_is_not_missed(tmp_path):
    front = component(["Start", "Opened", "Ready"]) | {"aux": ["Opened"]}
    made = plan({"front": front}, params={"kind": "cpu"})
    made["sites"] = {"front.Opened:publish": [[["param:kind", "is", "cuda"]]]}
    steps = ["publish front.Start", "publish front.Ready"]
    missed = {}
    for kind in ("cpu", "cuda"):
        run = read_run(write(tmp_path / kind, made, steps, argv=("made", f"--kind={kind}")))
        missed[kind] = record([run]).runs[0].missing
    assert missed == {"cpu": (), "cuda": ("front.Opened",)}


# -- births ---------------------------------------------------------------------------


def test_a_bare_prespawn_begins_when_its_parent_does(tmp_path):
    (tmp_path / "spec.yaml").write_text("""
apiVersion: cfac/v1
kind: StartupGraph
name: births
params: {n: {type: int, default: 2}}
components:
  root: {states: [Start, {A: {cost: 5s}}]}
  core:
    process: {spawned_by: root, strategy: {prespawn: root.A}}
    states: [Start, {A: {cost: 1s}}]
  worker:
    replicas: n
    process: {spawned_by: core, strategy: prespawn}
    states: [Start, {A: {cost: 2s}}]
  helper:
    replicas: n
    process: {spawned_by: worker, strategy: prespawn}
    states: [Start, {A: {cost: 3s}}]
  beside: {process: {spawned_by: root, strategy: prespawn}, states: [Start, {A: {cost: 7s}}]}
""")
    made, diagnostics = load(tmp_path / "spec.yaml")
    assert not diagnostics.errors, [d.message for d in diagnostics]
    found = analyze(made)
    begins = {row.name: row.begin / 1e9 for row in found.rows}
    assert begins == {"root.A": 0, "core.A": 5, "worker[0].A": 5, "worker[1].A": 5,
                      "helper[0].A": 5, "helper[1].A": 5, "beside.A": 0}  # fmt: skip
    assert [(step.why, step.of) for step in found.path][-1] == ("prespawn", "root.A")
    without = analyze(made, Query(without=("root.A:helper.*.A",)))
    assert without.times.predicted == 7_000_000_000


STARTED = """
apiVersion: cfac/v1
kind: StartupGraph
name: started
engine: {package: tiny, versions: ">=1"}
params: {n: {type: int, default: 2}, mode: {type: str, default: with}}
components:
  root: {states: [Start, {A: {cost: 1s}}, {B: {cost: 2s}}, {C: {cost: 4s, after: core.B}}]}
  core:
    process: {spawned_by: root STRATEGY}
    states: [Start, {Early: {aux: true, cost: 9s, does: {import: json}}}, {A: {cost: 10s}}, {B: {cost: 20s}}]
  worker:
    replicas: n
    process: {spawned_by: core}
    states: [Start, {A: {cost: 100s}}]
  child:
    replicas: n
    process: {spawned_by: worker}
    states: [Start, {A: {cost: 1000s}}]
chain: [root.A, root.B, core.A, worker.*.A | child.*.A, core.B, root.C]
"""  # noqa: E501


def started(tmp_path, strategy="", **changes):
    text = STARTED.replace("STRATEGY", strategy)
    for old, new in changes.items():
        text = text.replace(old, new)
    (tmp_path / "spec.yaml").write_text(text)
    made, diagnostics = load(tmp_path / "spec.yaml")
    assert not diagnostics.errors, [d.message for d in diagnostics]
    return made


def test_the_engine_starts_a_process_after_what_the_chain_has_before_it(tmp_path):
    made = started(tmp_path)
    found = analyze(made)
    begins = {row.name: row.begin // 10**9 for row in found.rows}
    assert begins == {
        "root.A": 0, "root.B": 1, "core.Early": 3, "core.A": 12, "core.B": 22,
        "worker[0].A": 22, "worker[1].A": 22,  # after core.A
        "child[0].A": 22, "child[1].A": 22,    # the worker has nothing before it: its own birth
        "root.C": 42,
    }  # fmt: skip
    assert found.declared == 1000 * 10**9
    assert [(step.why, step.of) for step in found.path] == [
        ("first", None), ("own", "root.A"), ("start", "root.B"), ("own", "core.Early"),
        ("start", "core.A"),
    ]  # fmt: skip
    falls = {(item.name, item.kind, item.of): item.fall // 10**9 for item in found.dependencies}
    assert falls["core.Early", "start", "root.B"] == 3
    assert falls["worker.*.A", "start", "core.A"] == 0
    assert falls["child.*.A", "start", "core.A"] == 22
    assert analyze(made, Query(without=("root.B:core.Early",))).times.predicted == 1019 * 10**9


def test_without_a_worker_its_children_start_nowhere(tmp_path):
    made = started(tmp_path, **{"replicas: n\n    process: {spawned_by: core}":
                                "when: {param: mode, is: with}\n    replicas: n\n"
                                "    process: {spawned_by: core}"})  # fmt: skip
    assert {row.name: row.begin for row in analyze(made, Query({"mode": "none"})).rows}[
        "child[0].A"
    ] == 0


@pytest.mark.parametrize(
    ("strategy", "early", "first"),
    [
        (", strategy: prespawn", 0, 9),
        (", strategy: {prespawn: root.A}", 1, 10),
        (", strategy: {fork: root.A}", 1, 10),
    ],
)
def test_a_process_that_is_there_early_goes_on_when_the_engine_comes_to_it(
    tmp_path, strategy, early, first
):
    site = {"start": '{in: "tiny:main", at: replace_callee, call: Process}'}
    bound = f", name: Core{strategy}, start: {site['start']}"
    made = started(tmp_path, bound, **{"cost: 2s": "cost: 50s"})
    begins = {row.name: row.begin // 10**9 for row in analyze(made).rows}
    assert (begins["core.Early"], begins["core.A"]) == (early, 51)  # root.B ends at 51
    unbound = started(tmp_path, strategy, **{"cost: 2s": "cost: 50s"})
    begins = {row.name: row.begin // 10**9 for row in analyze(unbound).rows}
    assert (begins["core.Early"], begins["core.A"]) == (early, first)


def test_a_start_against_an_order_for_speed_is_left_out(tmp_path):
    after = "{B: {cost: 2s, after: {state: core.A, schedule: true}}}"
    made = started(tmp_path, **{"{B: {cost: 2s}}": after})
    found = analyze(made)
    assert found.declared is None
    assert any("contradicts an order" in note for note in found.notes)


def test_without_an_engine_all_begin_at_once(tmp_path):
    made = started(tmp_path, **{'engine: {package: tiny, versions: ">=1"}': ""})
    found = analyze(made)
    assert found.declared is None and found.times.predicted == 1000 * 10**9


# -- leads and hollow states ----------------------------------------------------------


def lead_run(folder, observe, imported=True):
    states = ["Start", "Imported", "Ready"] if imported else ["Start", "Ready"]
    made = plan({"front": component(["Start", "Config"]), "core": component(states)},
                after={"core.Ready": ["front.Config"]})  # fmt: skip
    if imported:
        made["transitions"]["core.Imported"]["imports"] = ["json"]
    steps = [(1, "publish front.Start"), (3, "publish core.Start"), (8, "publish front.Config"),
             (20, "begin core.Ready"), (27, "publish core.Ready")]  # fmt: skip
    if imported:
        steps.append((4, "publish core.Imported"))
    history = read_run(write(folder, made, sorted(steps, key=lambda step: step[0])))
    history.info["observe"] = observe
    return history


@pytest.mark.parametrize(
    ("observe", "imported", "cost", "source"),
    [
        (False, False, 12, "taken"),  # from front.Config, for which it waits, to its begin
        (True, True, 12, "taken"),  # published by the engine's own start, without its work
        (False, True, 1, "run"),
    ],
)
def test_work_before_a_begin_of_its_own(specs, tmp_path, observe, imported, cost, source):
    core = part("core", {"Start": [], "Imported'": [], "Ready": ["front.Config"]})
    states = tuple(replace(s, imports=("json",) if s.aux else ()) for s in core.states)
    made = spec(
        replace(core, states=states), part("front", {"Start": [], "Config": []}),
        chain="front.Config core.Ready",
    )  # fmt: skip
    recorded = record([lead_run(tmp_path / "run", observe, imported)])
    found = analyze(made, Query(recorded=recorded))
    assert costs(found) == {
        "core.Imported": (cost, source), "core.Ready": (7, "run"), "front.Config": (7, "run"),
    }  # fmt: skip
    assert found.times.chain == (7 + cost + 7) * MS


def test_a_child_that_waits_to_be_started_takes_no_time_by_that(tmp_path):
    made = plan(
        {"front": component(["Start", "A", "B"]), "core": component(["Start", "Early", "Ready"])},
        chain=[["front.A"], ["core.Ready"], ["front.B"]],
    )
    made["components"]["core"]["process"] = {"spawned_by": "front", "strategy": {"fork": []}}
    made["components"]["core"]["aux"] = ["Early"]
    made["transitions"]["core.Early"]["birth"] = True
    steps = [(1, "publish front.Start"), (2, "publish core.Start"), (4, "publish core.Early"),
             (20, "publish front.A"), (23, "publish core.Ready")]  # fmt: skip
    recorded = record([read_run(write(tmp_path / "run", made, steps))])
    found = {str(key): cost // MS for key, cost in recorded.costs.replicas.items()}
    assert found == {"front.A": 19, "core.Early": 2, "core.Ready": 3}


# -- names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12s", 12), ("20ms", 0.02), ("300us", 0.0003), ("2min", 120), ("1.5", 1.5), (".5s", 0.5),
     ("1 s", 1), ("0", 0)],
)  # fmt: skip
def test_durations(text, seconds):
    assert duration(text) == round(seconds * 1e9)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1h", "1e3", "nan", "1,5s"])
def test_no_durations(text):
    with pytest.raises(SelectionError, match="is not a duration"):
        duration(text)
