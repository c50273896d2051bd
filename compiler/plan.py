"""The plan: what the runtime reads, as small deterministic JSON.

The plan is parametric: replica counts and conditions stay as the spec wrote them
and are instantiated when the engine starts (DESIGN: parameters are known only
then).  Version 1 of the form is described in docs/plan.md.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cfac.compiler.calm import calm
from cfac.compiler.layouts.read import COUNTS
from cfac.compiler.merge import merged
from cfac.compiler.model import (
    Binding,
    Component,
    Condition,
    Device,
    Process,
    Ref,
    Refined,
    RunKind,
    Site,
    Spec,
    State,
    Test,
)
from cfac.compiler.schedule_checks import birth_prefix
from cfac.compiler.split import SIDES

PLAN_VERSION = 1
_string = json.encoder.encode_basestring_ascii
_PLAN_WIDTH = 96


def text_hash(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def _relative(spec: Spec, name: str) -> str:
    """A source file's name, seen from the spec's folder."""
    return Path(os.path.relpath(name, Path(spec.file).parent)).as_posix()


def render_plan(plan: dict[str, Any]) -> str:
    """The plan's text: sorted keys, one final newline; equal plans give equal bytes.

    What fits in a line stands on one, so that a plan can be reviewed in a patch.
    """
    with calm():
        return _render(plan, 0)[0] + "\n"


def _render(value: Any, depth: int) -> tuple[str, bool]:
    """The text, and whether it is one line.  Each value is written once, inside out."""
    if not isinstance(value, dict | list):
        return _scalar(value), True
    parts: list[str] = []
    flat = True
    keys: Iterable[Any] = sorted(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        item = value[key]
        if type(item) is str:
            text = _string(item)
        elif isinstance(item, dict | list):
            text, short = _render(item, depth + 1)
            flat = flat and short
        else:
            text = _scalar(item)
        parts.append(text if type(key) is int else f"{_string(key)}: {text}")
    ends = "{}" if isinstance(value, dict) else "[]"
    if flat:
        compact = f"{ends[0]}{', '.join(parts)}{ends[1]}"
        if len(compact) + depth <= _PLAN_WIDTH or not parts:
            return compact, True
    pad = " " * (depth + 1)
    body = f",\n{pad}".join(parts)
    return f"{ends[0]}\n{pad}{body}\n{pad[1:]}{ends[1]}", False


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    return str(value) if isinstance(value, int) else json.dumps(value)


def _ref(ref: Ref) -> dict[str, Any]:
    return {
        "component": ref.component,
        "index": [ref.index.kind, ref.index.value],
        "state": ref.state,
    }


#: A test that fails in every start: what the engine's version has decided already.
NEVER = ["never", "is", True]
#: Decides the tests of the engine's version.
VersionTest = Callable[[Test], bool]


def _condition(condition: Condition | None, version: VersionTest) -> list[list[Any]] | None:
    if condition is None:
        return None
    decided = [test for test in condition.tests if test.subject == "version"]
    if not all(version(test) for test in decided):
        return [list(NEVER)]
    return [
        [test.subject, test.op, list(test.value) if isinstance(test.value, tuple) else test.value]
        for test in condition.tests
        if test.subject != "version"
    ]


def calls_of(sites: Iterable[Site]) -> dict[str, list[Site]]:
    """Kind of call -> a binding's sites that make one, in the order of their numbers.

    A wait is followed by a begin, and ``around`` puts one before its publish.  The end
    of a process is no call, but the owner decides in the same way whether it counts.
    """
    found = [site for site in sites if site.at != "process_exit"]
    of = {kind: [s for s in found if s.kind == kind] for kind in ("publish", "wait", "begin")}
    around = [site for site in of["publish"] if site.at == "around"]
    of["begin"] = [*of["begin"], *of["wait"], *around]
    of["take"] = [site for site in found if site.kind == "take"]
    of["exit"] = [site for site in sites if site.at == "process_exit"]
    return of


def depends(site: Site) -> bool:
    """Whether it is only known at run time if a site applies."""
    return any(test.subject != "version" for test in (site.when.tests if site.when else ()))


def _sites(binding: Binding, version: VersionTest) -> dict[str, list[Any]]:
    """``component.State:kind`` -> a condition for each site, where there are any."""
    here = [
        site
        for site in binding.sites
        if all(
            version(test)
            for test in (site.when.tests if site.when else ())
            if test.subject == "version"
        )
    ]
    name = f"{binding.ref.component}.{binding.ref.state}"
    return {
        f"{name}:{kind}": [_condition(site.when, version) or [] for site in sites]
        for kind, sites in calls_of(here).items()
        if any(depends(site) for site in sites)
    }


def _strategy(spec: Spec, process: Process) -> str | dict[str, list[str]]:
    """The strategy; a bare prespawn is at its parent's first state."""
    kind, at = process.strategy.kind, process.strategy.at
    if at is not None:
        return {kind: [at.component, at.state]}
    parent = spec.components.get(process.spawned_by or "")
    if kind == "prespawn" and parent is not None:
        return {kind: [parent.name, parent.states[0].name]}
    return "engine"


def _process(spec: Spec, process: Process) -> dict[str, Any]:
    return {
        "spawned_by": process.spawned_by,
        "name": process.name,
        "strategy": _strategy(spec, process),
        "start": bool(process.start),
        "context": bool(process.context),
        **({"stop": True} if process.stop else {}),
        **({"aliases": _aliases(process)} if process.aliases else {}),
    }


def _aliases(process: Process) -> dict[str, list[str]]:
    return {a.state.state: [a.of.component, a.of.state] for a in process.aliases}


def _component(
    spec: Spec, component: Component, run: RunKind, version: VersionTest
) -> dict[str, Any]:
    process, policy = component.process, component.policy
    return {
        "states": [state.name for state in component.states],
        "aux": [state.name for state in component.states if state.aux],
        "replicas": component.replicas,
        "when": _condition(component.when, version),
        "process": process and _process(spec, process),
        "policy": policy
        and {
            "gc": policy.gc,
            "until": policy.until.state,
            **({"when": _condition(policy.when, version)} if policy.when else {}),
        },
        **({"run": run} if run != "own" else {}),
    }


def _transition(
    state: State, binding: Binding | None, version: VersionTest, *, birth: bool
) -> dict[str, Any]:
    sites = binding.sites if binding else ()
    around = any(site.at == "around" for site in sites)  # begin before, publish after
    return {
        "after": [
            {**_ref(d.ref), "schedule": d.schedule, **({"bound": True} if d.bound else {})}
            for d in state.after
        ],
        "wait": any(site.kind == "wait" for site in sites),
        "begin": around or any(site.kind in ("begin", "wait") for site in sites),
        "exit": any(site.at == "process_exit" for site in sites),
        "run": binding.run if binding else None,
        "cost": state.cost,
        "imports": list(state.imports),
        "idle": state.idle_while is not None,
        "birth": birth,
        **({"recorded": list(state.recorded_part)} if state.recorded_part else {}),
        **({"recorded_torch": state.recorded_torch} if state.recorded_torch else {}),
        **{effect.kind: effect.value for effect in state.effects if effect.kind in SIDES},
        **({"device": _device(state.device, version)} if state.device else {}),
        **({"imports_when": _condition(state.imports_when, version)} if state.imports_when else {}),
    }


def _device(device: Device, version: VersionTest) -> dict[str, Any]:
    return {"kind": device.kind, "when": _condition(device.when, version) or []}


def _deferred_outside(spec: Spec, package: str) -> dict[str, list[list[str]]]:
    """``deferred``: [decorator, module] of what is deferred where no patch reaches."""
    found = [
        [entry.name, place]
        for entry in spec.defers
        for place in entry.places
        if place.split(".")[0] != package
    ]
    return {"deferred": found} if found else {}


def _remember(spec: Spec) -> dict[str, Any]:
    """``remember``: modules whose code is kept, and functions whose results are."""
    if not spec.remembers:
        return {}
    results = [r for r in spec.remembers if r.kind == "result"]
    return {
        "remember": {
            "compiled": [r.name for r in spec.remembers if r.kind == "compiled"],
            "results": [
                {"function": r.name.rsplit(".", 1), "files": list(r.files), "below": r.below}
                for r in results
            ],
        }
    }


def _refine(refined: Refined) -> dict[str, Any]:
    """What a loader needs to give the derived components their replicas."""
    refine = refined.refine
    return {
        "layout": "safetensors",
        "chunk_size": refine.chunk_size or "auto",
        "ring": refine.ring,
        "depth": refine.depth,
        "release": refine.release,
        "counts": {"tensors": refined.naive.replicas, **COUNTS},
        "stands_for": {f"{refine.component}.{refined.naive.states[-1].name}":
                       f"{refine.component}.{refine.states[-1][0]}"},
    }  # fmt: skip


def compile_plan(spec: Spec, version: VersionTest = lambda _: True) -> dict[str, Any]:
    """The plan of a checked spec, JSON-ready.

    ``version`` decides the tests of the engine's version, which is known by now.
    """
    with calm():
        return _plan(spec, version)


def _plan(spec: Spec, version: VersionTest) -> dict[str, Any]:
    bindings = {(b.ref.component, b.ref.state): b for b in spec.bindings}
    engine = spec.engine
    return {
        "cfac": PLAN_VERSION,
        "name": spec.name,
        "transport": spec.transport,
        "hashes": {_relative(spec, name): text_hash(text) for name, text in spec.sources.items()},
        "engine": engine
        and {
            "package": engine.package,
            "versions": engine.versions,
            "unsupported": [
                {"when": _condition(entry.when, version), "reason": entry.reason}
                for entry in engine.unsupported
            ],
            **_deferred_outside(spec, engine.package),
            **_remember(spec),
        },
        "params": {
            param.name: {
                "type": param.type,
                "default": param.default,
                "argv": [option for source in param.sources for option in source.argv],
                "programs": [list(s.program) for s in param.sources if s.program],
                "at": sorted({f"{s.at.component}.{s.at.state}" for s in param.sources if s.at}),
            }
            for param in spec.params.values()
        },
        "components": {
            c.name: _component(spec, c, spec.run_of(c.name), version)
            for c in spec.components.values()
        },
        "transitions": {
            f"{component.name}.{state.name}": _transition(
                state, bindings.get((component.name, state.name)), version, birth=state in births
            )
            for component in spec.components.values()
            for births in [birth_prefix(spec, component)]
            for state in component.states[1:]
        },
        "sites": {
            name: conditions
            for binding in spec.bindings
            for name, conditions in _sites(binding, version).items()
        },
        "groups": {
            group.name: {"each": group.per_replica, "of": [_ref(ref) for ref in group.members]}
            for group in merged(spec).values()
        },
        "layouts": {
            f"{layout.component}.{layout.relation}": [list(row) for row in layout.lists]
            for layout in spec.layouts.values()
            if not layout.derived  # known when the engine has read the headers
        },
        **(
            {"refine": {r.refine.component: _refine(r) for r in spec.refined}}
            if spec.refined
            else {}
        ),
        "chain": [[_ref(ref) for ref in rank] for rank in spec.chain],
    }
