"""YAML with positions: scalars, traps and hostile files."""

from pathlib import Path

import pytest
import yaml

from cfac.compiler.api import load
from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.yamlpos import MapNode, ScalarNode, core_scalar, parse, to_data


def read(text: str) -> tuple[MapNode | None, list[tuple[str, int, int]]]:
    found = Diagnostics()
    root = parse(text, "f.yaml", found)
    return root, [(d.code, d.span.line, d.span.column) for d in found if d.span]


def load_bytes(tmp_path: Path, raw: bytes) -> list[tuple[str, int, int]]:
    path = tmp_path / "spec.yaml"
    path.write_bytes(raw)
    _, found = load(path)
    return [(d.code, d.span.line, d.span.column) if d.span else (d.code, 0, 0) for d in found]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("On", "On"), ("off", "off"), ("No", "No"), ("yes", "yes"), ("y", "y"),
        ("1:30", "1:30"), ("010", "010"), ("-010", "-010"), ("1_000", "1_000"),
        ("2001-01-01", "2001-01-01"), ("=", "="), ("-", "-"), (".", "."), ("0b1", "0b1"),
        ("0", 0), ("-7", -7), ("+12", 12), ("0o17", 15), ("0x1F", 31),
        ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("1.", 1.0), ("1.5.2", "1.5.2"),
        ("true", True), ("False", False), ("~", None), ("null", None), ("Null", None),
        (".inf", float("inf")), ("-.INF", float("-inf")), ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_core_schema(text: str, value: object) -> None:
    found = core_scalar(text)
    assert found == value and type(found) is type(value)


def test_quoted_scalars_are_text() -> None:
    root, found = read("a: '1'\nb: \"true\"\nc: !!str 5\nd: |\n  7\n")
    assert root is not None and not found
    assert to_data(root) == {"a": "1", "b": "true", "c": "5", "d": "7\n"}


def test_columns_count_characters() -> None:
    root, _ = read('"é🎉": "等 x"\n')
    assert root is not None
    key, value = root.entries[0]
    assert isinstance(value, ScalarNode)
    assert (key.span.column, key.span.end_column) == (1, 5)
    assert (value.span.column, value.span.end_column, value.inner) == (7, 12, 8)
    assert value.part(2, 3).column == 10


def test_escapes_have_no_inner_positions() -> None:
    root, _ = read('a: "x\\ty"\nb: x\n   y\n')
    assert root is not None
    for _, value in root.entries:
        assert isinstance(value, ScalarNode) and value.part(0, 1) == value.span


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", [("CF104", 3, 1)]),
        ("a: 1\n1: 2\n'1': 3\n", [("CF104", 3, 1)]),
        ("a: [1\nb: 2\n", [("CF103", 2, 2)]),
        ("a:\n\t- b\n", [("CF103", 2, 1)]),
        ("a: 'x\n", [("CF103", 2, 1)]),
        ("a: b: c\n", [("CF103", 1, 5)]),
        ("a: @x\n", [("CF103", 1, 4)]),
        ("a: &x [*x]\n", [("CF105", 1, 8)]),
        ("a: &x {b: {c: *x}}\n", [("CF105", 1, 15)]),
        ("a: *nothing\n", [("CF105", 1, 4)]),
        ("a: *\n", [("CF103", 1, 5)]),
        ("a: !!set [1]\n", [("CF105", 1, 4)]),
        ("a: !x 1\n", [("CF105", 1, 4)]),
        ("a: &x {b: 1}\nc: {<<: *x}\n", [("CF105", 2, 5)]),
        ("? [1]\n: 2\n", [("CF105", 1, 3)]),
        ("", [("CF106", 1, 1)]),
        ("# nothing\n", [("CF106", 1, 1)]),
        ("---\n", [("CF106", 1, 1)]),
        ("- 1\n", [("CF106", 1, 1)]),
        ("a: 1\n---\nb: 2\n", [("CF106", 2, 1)]),
        ("a: \x07\n", [("CF102", 1, 4)]),
        ("a: 1\r\nb: \x00\n", [("CF102", 2, 4)]),
        ("a: " + "[" * 80 + "]" * 80 + "\n", [("CF103", 1, 67)]),
    ],
)
def test_wrong_yaml(text: str, expected: list[tuple[str, int, int]]) -> None:
    assert read(text)[1] == expected


def test_endless_nesting() -> None:
    _, found = read("a: " + "[" * 100_000)
    assert [code for code, _, _ in found] == ["CF103"]


def test_billion_laughs() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    _, found = read("\n".join(lines))
    assert [code for code, _, _ in found] == ["CF105"]


def test_aliases_work() -> None:
    root, found = read("a: &x [1]\nb: *x\n&k c: 2\nd: *k\n")
    assert root is not None and not found
    assert to_data(root) == {"a": [1], "b": [1], "c": 2, "d": "c"}


def test_files(tmp_path: Path) -> None:
    spec = b"apiVersion: cfac/v1\nkind: StartupGraph\nname: x\ncomponents: {c: {states: [S, A]}}\n"
    assert load_bytes(tmp_path, spec) == []
    assert load_bytes(tmp_path, b"\xef\xbb\xbf" + spec) == []
    assert load_bytes(tmp_path, spec.replace(b"\n", b"\r\n")) == []
    assert load_bytes(tmp_path, spec.rstrip()) == []
    assert load_bytes(tmp_path, b"") == [("CF106", 1, 1)]
    assert load_bytes(tmp_path, "a: é\n".encode() + b"b: \xff\n") == [("CF102", 2, 4)]
    assert load_bytes(tmp_path, "a: 1".encode("utf-16")) == [("CF102", 1, 1)]
    assert load_bytes(tmp_path, b"#" * (17 * 1024 * 1024)) == [("CF101", 0, 0)]
    assert [d.code for d in load(tmp_path)[1]] == ["CF101"]
    assert [d.code for d in load(tmp_path / "nowhere.yaml")[1]] == ["CF101"]
    assert [d.code for d in load("a\0b")[1]] == ["CF101"]


@pytest.mark.parametrize("case", ["eight-mistakes", "references", "bindings", "wide-characters"])
def test_the_pure_loader_agrees(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1] / "cases" / "spec" / case)
    fast = load("spec.yaml")[1].sorted()
    monkeypatch.setattr("cfac.compiler.yamlpos._LOADER", yaml.Loader)
    assert load("spec.yaml")[1].sorted() == fast
