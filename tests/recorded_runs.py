"""Hand-made run folders: a plan and a trace, written line by line."""

from __future__ import annotations

import json
from itertools import count

MS = 1_000_000


def ref(name, index=None):
    """``worker[i-1].S``, ``worker.*.S``, ``worker[0].S`` or ``core.S`` as in a plan."""
    head, _, state = name.rpartition(".")
    component, _, inside = head.removesuffix(".*").partition("[")
    inside = inside.rstrip("]")
    kind: list = ["none", None]
    if head.endswith(".*"):
        kind = ["all", None]
    elif inside.startswith("i"):
        kind = ["offset", int(inside[1:])]
    elif inside:
        kind = ["at", int(inside)]
    return {"component": component, "state": state, "index": kind}


def component(states, replicas=None, when=None):
    return {"states": states, "aux": [], "replicas": replicas, "when": when, "process": None}


def plan(components, after=None, chain=(), params=None):
    after = after or {}
    transitions = {}
    for name, entry in components.items():
        for state in entry["states"][1:]:
            needs = [{**ref(n), "schedule": False} for n in after.get(f"{name}.{state}", ())]
            transitions[f"{name}.{state}"] = {
                "after": needs, "wait": False, "begin": bool(needs), "exit": False,
                "run": None, "cost": None,
            }  # fmt: skip
    return {
        "cfac": 1, "name": "made", "transport": "process", "hashes": {}, "engine": None,
        "params": {
            name: {"type": "str" if isinstance(default, str) else "int", "default": default,
                   "argv": [f"--{name}"], "at": ["a.One"]}
            for name, default in (params or {}).items()
        },
        "components": components, "transitions": transitions, "groups": {}, "layouts": {},
        "chain": [[ref(n) for n in rank] for rank in chain],
    }  # fmt: skip


def split(who):
    name, bracket, rest = who.partition("[")
    return {"c": name, "i": int(rest[:-1]) if bracket else None}


def write(folder, made, steps, tail="", argv=("made",)):
    """A run's folder: ``steps`` are "begin a.One" lines, one each ms, or (ms, line)."""
    folder.mkdir(exist_ok=True)
    info = {"id": "made", "root": 7, "argv": list(argv), "observe": False, "monotonic": 0}
    (folder / "run.json").write_text(json.dumps(info))
    if made is not None:
        (folder / "plan.json").write_text(json.dumps(made))
    lines, clock = [], count(1)
    for step in steps:
        time, text = step if isinstance(step, tuple) else (next(clock), step)
        if isinstance(text, dict):
            lines.append({"t": int(time * MS), **text})
            continue
        kind, _, name = text.partition(" ")
        who, _, state = name.rpartition(".")
        lines.append({"t": int(time * MS), "e": kind, **split(who), "s": state})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "7.jsonl").write_text(text + tail)
    return folder
