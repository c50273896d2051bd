"""Rendering diagnostics."""

import json

from cfac.compiler.diagnostics import Diagnostic, Note, Span
from cfac.compiler.render import render, summary

SOURCE = "a: 1\n\tb: 等待 x\n"
ERROR = Diagnostic(
    "CF201",
    "error",
    "50% wrong,\nreally",
    Span("f,1.yaml", 2, 8, 9),
    (Note("see", None),),
    "fix: it",
)


def test_caret_follows_tabs_and_wide_characters() -> None:
    lines = render([ERROR], {"f,1.yaml": SOURCE}).splitlines()
    assert lines[0] == "f,1.yaml:2:8: error[CF201]: 50% wrong,"
    assert lines[2] == "    2 |     b: 等待 x"
    assert lines[3] == "      |" + " " * 13 + "^"
    assert lines[4:] == ["  note: see", "  help: fix: it"]


def test_json() -> None:
    (item,) = json.loads(render([ERROR], {}, "json"))
    assert item["code"] == "CF201" and item["severity"] == "error"
    assert item["span"] == {"file": "f,1.yaml", "line": 2, "column": 8, "end_column": 9}
    assert item["notes"] == [{"message": "see", "span": None}] and item["help"] == "fix: it"
    assert json.loads(render([], {}, "json")) == []


def test_github() -> None:
    text = render([ERROR], {}, "github")
    assert text == (
        "::error file=f%2C1.yaml,line=2,col=8,endColumn=9,title=CF201::"
        "50%25 wrong,%0Areally%0Anote: see%0Ahelp: fix: it\n"
    )


def test_without_position_or_source() -> None:
    assert render([Diagnostic("CF101", "error", "gone")]) == "error[CF101]: gone\n"
    missing = Diagnostic("CF101", "warning", "x", Span("/no/such/file", 3, 1, 2))
    assert render([missing]) == "/no/such/file:3:1: warning[CF101]: x\n"
    beyond = Diagnostic("CF101", "error", "x", Span("f", 9, 1, 2))
    assert render([beyond], {"f": "a\n"}) == "f:9:1: error[CF101]: x\n"


def test_terminals_are_not_obeyed() -> None:
    evil = Diagnostic("CF107", "error", "\x1b[31mred", Span("f", 1, 2, 3))
    text = render([evil], {"f": "a\x1b[2Jb\n"})
    assert "\x1b" not in text


def test_long_lines_are_cut_around_the_caret() -> None:
    line = "x" * 5000 + "Y" + "z" * 5000
    lines = render(
        [Diagnostic("C", "error", "m", Span("f", 1, 5001, 5002))], {"f": line}
    ).splitlines()
    assert len(lines[1]) < 200
    assert lines[1][lines[2].index("^")] == "Y"


def test_colour_is_only_on_request() -> None:
    assert "\x1b[" in render([ERROR], {}, colour=True)
    assert "\x1b[" not in render([ERROR], {})


def test_summary() -> None:
    warning = Diagnostic("CF213", "warning", "w")
    assert summary([ERROR, ERROR, warning]) == "2 errors, 1 warning"
    assert summary([]) == ""
