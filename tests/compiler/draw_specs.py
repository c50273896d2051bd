"""Specs of all sizes for the drawing tests."""

from __future__ import annotations

import random
import re

from cfac.compiler.diagnostics import Span
from cfac.compiler.model import (
    Component,
    Condition,
    Dependency,
    Index,
    MergeGroup,
    Process,
    Ref,
    Spec,
    State,
    Strategy,
    Test,
)

SPAN = Span("spec.yaml", 3, 5, 9)
WORDS = [
    "Imported",
    "Configured",
    "DeviceReady",
    "HandleReady",
    "GraphCaptured",
    "KvCacheAllocated",
    "Warm",
    "Bound",
    "ProfileRunDone",
    "PrometheusEndpointListening",
    "Ready",
]


def ref(text: str) -> Ref:
    match = re.fullmatch(r"([\w-]+)(?:\[(.*?)\]|(\.\*))?\.([\w-]+)", text)
    assert match, text
    name, at, star, state = match.groups()
    index = Index("all") if star else Index()
    if at and at.startswith("self."):
        index = Index("layout", at[5:])
    elif at and at.startswith("i"):
        index = Index("offset", int(at[1:] or 0))
    elif at:
        index = Index("at", int(at))
    return Ref(name, state, index, SPAN)


def state(name, *after, aux=False, cost=None):
    """An ``after`` that starts with ``~`` is a schedule edge."""
    waits = tuple(
        Dependency(ref(a.lstrip("~")), a.startswith("~"), "because" if "~" in a else None)
        for a in after
    )
    return State(name, SPAN, aux, waits, cost)


def component(name, *states, replicas=None, parent=None, when=None):
    built = tuple(s if isinstance(s, State) else state(s) for s in states)
    process = Process(parent, None, Strategy(), SPAN) if parent else None
    condition = Condition((Test("param:executor", "is", when, SPAN),), SPAN) if when else None
    return Component(name, SPAN, built, replicas, condition, process)


def spec(name, *components, chain=(), merges=()):
    return Spec(
        name,
        "spec.yaml",
        SPAN,
        {c.name: c for c in components},
        chain=tuple(tuple(ref(r) for r in step.split("|")) for step in chain),
        merges=tuple(MergeGroup(name, tuple(map(ref, of)), SPAN) for name, of in merges),
    )


def three():
    return spec(
        "three", component("A", "A0", "A1", "A2"), component("B", "B0", state("B1", "A.A1"))
    )


def thirty():
    return spec(
        "fast start",
        component(
            "frontend",
            "Start",
            state("CommonImported", aux=True, cost=4.2),
            state("ConfigReady", cost=0.8),
            "ClientBound",
            state("IdleDone", aux=True),
            state("Ready", "core.Ready"),
        ),
        component(
            "core",
            "Start",
            "Constructed",
            state("Configured", "frontend.ConfigReady"),
            state("HandleReady", cost=0.02),
            state("Ready", "worker.*.Ready", "~frontend.ClientBound"),
            parent="frontend",
        ),
        component(
            "worker",
            "Start",
            state("Constructed", "worker[i-1].Constructed", cost=12.5),
            state("Bound", aux=True),
            state("Ready", "core.HandleReady", "loader.ModelLoaded"),
            replicas="workers",
            parent="core",
            when="mp",
        ),
        component("loader", "Idle", "Opened", state("ModelLoaded", "tensor.*.Loaded")),
        component(
            "chunk",
            "InDisk",
            state("InMem", "chunk[i-1].InMem", "chunk[i-4].Destroyed", aux=True),
            state("InGPU", "chunk[i-1].InGPU", aux=True),
            state("Gathered", aux=True),
            state("Destroyed", "tensor[self.tensors].Loaded", aux=True),
            replicas="chunks",
        ),
        component("tensor", "Alloc", state("Loaded", "chunk[self.chunks].InGPU"), replicas="n"),
        component(
            "metrics_exporter",
            "Start",
            state("PrometheusEndpointListening", "frontend.ConfigReady"),
            state("FirstScrapeAnswered", "frontend.Ready"),
        ),
        chain=["frontend.ConfigReady", "frontend.ClientBound|core.Constructed", "core.Configured"],
        merges=[
            ("Imports", ["core.Constructed", "worker.*.Constructed"]),
            ("LoadAll", ["chunk.*.InGPU", "chunk.*.Gathered"]),
        ],
    )


def many(seed=1, lanes=20, states=10, density=0.25, cyclic=False):
    """Random dependencies; without ``cyclic`` each follows one global order."""
    rng = random.Random(seed)
    built = []
    for lane in range(lanes):
        steps = [state("Start")]
        for place in range(states):
            after = []
            while rng.random() < density:
                other, at = rng.randrange(lanes), rng.randrange(states)
                if other != lane and (cyclic or (at, other) < (place, lane)):
                    mark = "~" if rng.random() < 0.2 else ""
                    after.append(f"{mark}comp{other}.{WORDS[at]}")
            steps.append(state(WORDS[place], *dict.fromkeys(after), aux=rng.random() < 0.1))
        parent = f"comp{(lane - 1) // 3}" if lane else None
        built.append(component(f"comp{lane}", *steps, parent=parent))
    return spec(f"random {seed}", *built)


def workers(chained=False):
    first = ["worker[i-1].Constructed"] if chained else []
    return spec(
        "workers",
        component("frontend", "Start", "ConfigReady", state("Ready", "core.Ready")),
        component(
            "core", "Start", "HandleReady", state("Ready", "worker.*.Ready"), parent="frontend"
        ),
        component(
            "worker",
            "Start",
            state("Constructed", *first),
            state("Ready", "core.HandleReady"),
            replicas="workers",
            parent="core",
        ),
    )


def serial(length=200):
    return spec("serial", component("a", "Start", *(f"Step{k}" for k in range(length))))


def hostile():
    evil = '<script>alert("1")</script> & \'x\' ]]> --> \\ "] --> {end} \x00\x1b\n%%'
    quiet = SPAN
    odd = State(evil + "2", quiet, after=(Dependency(Ref("b", evil, Index(), quiet), True, evil),))
    return Spec(
        evil,
        "spec.yaml",
        Span(evil, 1, 1, 2),
        {
            evil: Component(evil, quiet, (state("end"), odd), evil),
            "b": Component("b", quiet, (state("Start"), State(evil, quiet))),
        },
        merges=(MergeGroup(evil, (Ref("b", evil, Index(), quiet),), quiet),),
    )
