"""The plan: what the runtime reads, as small deterministic JSON.

The plan is parametric: replica counts and conditions stay as the spec wrote them
and are instantiated when the engine starts (DESIGN: parameters are known only
then).  Version 1 of the form is described in docs/plan.md.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cfac.compiler.merge import merged
from cfac.compiler.model import Binding, Component, Condition, Ref, Spec, State

PLAN_VERSION = 1
_PLAN_WIDTH = 96


def text_hash(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def render_plan(plan: dict[str, Any]) -> str:
    """The plan's text: sorted keys, one final newline; equal plans give equal bytes.

    What fits in a line stands on one, so that a plan can be reviewed in a patch.
    """
    return _render(plan, 0) + "\n"


def _render(value: Any, depth: int) -> str:
    compact = json.dumps(value, sort_keys=True, ensure_ascii=True)
    if len(compact) + depth <= _PLAN_WIDTH or not isinstance(value, (dict, list)):
        return compact
    pad, close = " " * (depth + 1), " " * depth
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {_render(v, depth + 1)}" for k, v in sorted(value.items())]
        return "{\n" + ",\n".join(pad + item for item in items) + f"\n{close}}}"
    return "[\n" + ",\n".join(pad + _render(item, depth + 1) for item in value) + f"\n{close}]"


def _ref(ref: Ref) -> dict[str, Any]:
    return {
        "component": ref.component,
        "index": [ref.index.kind, ref.index.value],
        "state": ref.state,
    }


def _condition(condition: Condition | None) -> list[list[Any]] | None:
    if condition is None:
        return None
    return [
        [test.subject, test.op, list(test.value) if isinstance(test.value, tuple) else test.value]
        for test in condition.tests
    ]


def _component(component: Component) -> dict[str, Any]:
    process = component.process
    return {
        "states": [state.name for state in component.states],
        "aux": [state.name for state in component.states if state.aux],
        "replicas": component.replicas,
        "when": _condition(component.when),
        "process": process
        and {
            "spawned_by": process.spawned_by,
            "name": process.name,
            "strategy": process.strategy,
        },
    }


def _transition(spec: Spec, state: State, binding: Binding | None) -> dict[str, Any]:
    sites = binding.sites if binding else ()
    around = any(site.at == "around" for site in sites)  # begin before, publish after
    return {
        "after": [
            {**_ref(dependency.ref), "schedule": dependency.schedule} for dependency in state.after
        ],
        "wait": any(site.kind == "wait" for site in sites),
        "begin": around or any(site.kind in ("begin", "wait") for site in sites),
        "exit": any(site.at == "process_exit" for site in sites),
        "run": binding.run if binding else None,
        "cost": state.cost,
    }


def compile_plan(spec: Spec) -> dict[str, Any]:
    """The plan of a checked spec, JSON-ready; merged groups keep the spec's order."""
    bindings = {(b.ref.component, b.ref.state): b for b in spec.bindings}
    engine = spec.engine
    return {
        "cfac": PLAN_VERSION,
        "name": spec.name,
        "transport": spec.transport,
        "hashes": {name.rsplit("/", 1)[-1]: text_hash(text) for name, text in spec.sources.items()},
        "engine": engine
        and {
            "package": engine.package,
            "versions": engine.versions,
            "unsupported": [
                {"when": _condition(entry.when), "reason": entry.reason}
                for entry in engine.unsupported
            ],
        },
        "params": {
            param.name: {
                "type": param.type,
                "default": param.default,
                "argv": [option for source in param.sources for option in source.argv],
                "at": sorted({str(source.at) for source in param.sources if source.at}),
            }
            for param in spec.params.values()
        },
        "components": {c.name: _component(c) for c in spec.components.values()},
        "transitions": {
            f"{component.name}.{state.name}": _transition(
                spec, state, bindings.get((component.name, state.name))
            )
            for component, state in spec.transitions()
        },
        "groups": {
            group.name: {"each": group.per_replica, "of": [_ref(ref) for ref in group.members]}
            for group in merged(spec).values()
        },
        "layouts": {
            f"{layout.component}.{layout.relation}": [list(row) for row in layout.lists]
            for layout in spec.layouts.values()
        },
        "chain": [[_ref(ref) for ref in rank] for rank in spec.chain],
    }
