"""The plan's text is that of json.dumps, broken where a line would be too long."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cfac.compiler.plan import render_plan

WIDTH = 96


def slow(value: Any, depth: int = 0) -> str:
    """The definition: one line if it fits, else one entry a line, each in the same way."""
    compact = json.dumps(value, sort_keys=True, ensure_ascii=True)
    if len(compact) + depth <= WIDTH or not isinstance(value, (dict, list)):
        return compact
    pad, close = " " * (depth + 1), " " * depth
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {slow(v, depth + 1)}" for k, v in sorted(value.items())]
        return "{\n" + ",\n".join(pad + item for item in items) + f"\n{close}}}"
    return "[\n" + ",\n".join(pad + slow(item, depth + 1) for item in value) + f"\n{close}]"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS | st.text("x", max_size=120),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=40), inner),
    max_leaves=40,
)


@given(st.dictionaries(st.text(max_size=20), VALUES))
def test_the_text_is_as_defined(value: dict[str, Any]) -> None:
    text = render_plan(value)
    assert text == slow(value) + "\n"
    assert json.loads(text) == value
