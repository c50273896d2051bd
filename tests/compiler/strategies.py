"""Random specs for the graph tests."""

from __future__ import annotations

from hypothesis import strategies as st

from build import component, spec
from cfac.compiler.model import Spec

STATES = ["S", "A", "B", "C"]


@st.composite
def specs(
    draw: st.DrawFn,
    counts: tuple[int | str | None, ...] = (None, "n", "n", "m"),
    indices: tuple[str, ...] = ("*", "i-3", "i-2", "i-1", "i", "i+1", "i+2", "i+3"),
    waits: int = 7,
    aux: bool = False,
    schedule: bool = False,
    forward: bool | None = None,
    when: bool = False,
    largest: int = 4,
) -> Spec:
    """Random components; sometimes every index points one way, so that many are acyclic."""
    size = draw(st.integers(1, largest))
    replicas = [draw(st.sampled_from(counts)) for _ in range(size)]
    lengths = [draw(st.integers(2, 4)) for _ in range(size)]
    after: dict[tuple[int, int], list[str]] = {}
    one_way = draw(st.sampled_from(["", "+", "-"]))
    ordered = draw(st.booleans()) if forward is None else forward
    for _ in range(draw(st.integers(0, waits))):
        target, source = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
        t = draw(st.integers(1, lengths[target] - 1))
        s = draw(st.integers(1, lengths[source] - 1))
        mark = "~" if schedule and draw(st.integers(0, 3)) == 0 else ""
        if replicas[source] is None:
            name = f"c{source}.{STATES[s]}"
        else:
            fits = [
                i for i in indices
                if (replicas[target] is not None or not i.startswith("i"))
                and not (one_way == "+" and "-" in i) and not (one_way == "-" and "+" in i)
            ]  # fmt: skip
            index = draw(st.sampled_from(fits or ["*"]))
            name = f"c{source}.*.{STATES[s]}" if index == "*" else f"c{source}[{index}].{STATES[s]}"
            if "+" in index or "-" in index:
                after.setdefault((target, t), []).append(mark + name)
                continue
        if not ordered or (s, source) < (t, target):
            after.setdefault((target, t), []).append(mark + name)
    parts = []
    for i in range(size):
        states = {
            STATES[s] + ("'" if s and aux and draw(st.booleans()) else ""): after.get((i, s), [])
            for s in range(lengths[i])
        }
        condition = draw(st.sampled_from(["", "", "on", "off"])) if when else ""
        parts.append(component(f"c{i}", states, replicas[i], condition))
    return spec(*parts)
