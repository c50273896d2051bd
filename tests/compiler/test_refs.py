"""The reference grammar."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfac.compiler.diagnostics import Diagnostics, Span
from cfac.compiler.model import Index
from cfac.compiler.refs import REF_PATTERN, component_span, index_span, parse_ref, state_span
from cfac.compiler.yamlpos import ScalarNode


def node(text: str) -> ScalarNode:
    return ScalarNode(text, text, Span("f", 1, 1, len(text) + 3), 2)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("core.Ready", Index()),
        ("worker.*.Ready", Index("all")),
        ("worker[i].Ready", Index("offset", 0)),
        ("worker[i-1].Ready", Index("offset", -1)),
        ("worker[i+12].Ready", Index("offset", 12)),
        ("x[3].S", Index("at", 3)),
        ("chunk[self.my-chunks].S", Index("layout", "my-chunks")),
    ],
)
def test_accepts(text: str, index: Index) -> None:
    found = Diagnostics()
    ref = parse_ref(node(text), found)
    assert ref is not None and not found.items
    assert ref.index == index and str(ref) == text
    assert (ref.span.column, ref.span.end_column) == (2, 2 + len(text))


def test_sub_spans() -> None:
    ref = parse_ref(node("worker[i-1].Ready"), Diagnostics())
    assert ref is not None
    spans = [component_span(ref), index_span(ref), state_span(ref)]
    assert [(s.column, s.end_column) for s in spans] == [(2, 8), (8, 13), (14, 19)]


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("", 2), ("core", 2), ("core.", 6), (".Ready", 2), ("core .Ready", 6), ("x[].S", 4),
        ("x[i*2].S", 4), ("x[self.].S", 4), ("x[i].", 6), ("x[i]S", 6), ("x.**.S", 5),
        ("x.S.T", 5), ("1x.S", 2), ("x.1S", 4), ("x[i-9999999999].S", 4), ("x[\u0661].S", 4),
    ],
)  # fmt: skip
def test_refuses(text: str, column: int) -> None:
    found = Diagnostics()
    assert parse_ref(node(text), found) is None
    (only,) = found.items
    assert only.code == "CF111" and only.span is not None and only.span.column == column


@given(st.text("xi.*[]+-1self S", max_size=14))
def test_agrees_with_the_published_pattern(text: str) -> None:
    found = Diagnostics()
    ref = parse_ref(node(text), found)
    assert (ref is not None) == bool(re.fullmatch(REF_PATTERN.strip("^$"), text))
    assert (ref is None) == (len(found) == 1)
