"""dot, mermaid, json and the ``graph`` command; golden drawings of two small specs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import draw_specs as specs
import pytest
from click.testing import CliRunner

from cfac.compiler.api import load
from cfac.compiler.commands.graph import graph
from cfac.compiler.draw import FORMATS, render
from cfac.compiler.draw.build import absent, collapsed, expanded

CASES = Path(__file__).parent.parent / "cases" / "draw"
SCENES = {
    "thirty": collapsed(specs.thirty()),
    "expanded": expanded(specs.thirty(), {"workers": 3, "chunks": 6, "n": 4}),
    "cyclic": collapsed(specs.many(3, cyclic=True)),
    "hostile": collapsed(specs.hostile()),
    "empty": collapsed(specs.spec("empty")),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["small", "cyclic"])
def test_golden(name, format, monkeypatch, request):
    monkeypatch.chdir(CASES / name)
    spec, _ = load("spec.yaml")
    drawn = render(collapsed(spec), format)
    golden = Path(f"expected.{format}")
    if request.config.getoption("--update-golden"):
        golden.write_bytes(drawn.encode())
    assert drawn.encode() == golden.read_bytes()


def test_golden_expanded(monkeypatch, request):
    monkeypatch.chdir(CASES / "small")
    spec, _ = load("spec.yaml")
    drawn = render(expanded(spec, {"workers": 3}), "svg")
    golden = Path("expected-expanded.svg")
    if request.config.getoption("--update-golden"):
        golden.write_bytes(drawn.encode())
    assert drawn.encode() == golden.read_bytes()


@pytest.mark.parametrize("format", FORMATS)
def test_drawings_do_not_depend_on_the_hash_seed(format):
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import draw_specs as s; from cfac.compiler.draw import render\n"
        "from cfac.compiler.draw.build import collapsed\n"
        f"[sys.stdout.buffer.write(render(collapsed(x), {format!r}).encode()) for x in "
        "(s.thirty(), s.many(3, cyclic=True), s.serial())]"
    )
    root = Path(__file__).parent.parent.parent
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|(->|[{}\[\];=])|([A-Za-z_][\w.]*|-?[\d.]+))', re.S)


def dot_tokens(text):
    at, tokens = 0, []
    text = text.rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        assert match, text[at : at + 60]
        tokens.append(match)
        at = match.end()
    return tokens


@pytest.mark.parametrize("name", SCENES)
def test_dot_has_balanced_syntax_and_known_ends(name):
    scene = SCENES[name]
    tokens = dot_tokens(render(scene, "dot"))
    symbols = [t[2] for t in tokens if t[2]]
    assert symbols.count("{") == symbols.count("}") == 1 + len(scene.lanes)
    assert symbols.count("[") == symbols.count("]")
    assert symbols.count("->") == len(scene.edges)


@pytest.mark.skipif(not shutil.which("dot"), reason="graphviz is not installed")
@pytest.mark.parametrize("name", SCENES)
def test_graphviz_reads_dot(name):
    drawn = render(SCENES[name], "dot")
    result = subprocess.run(
        ["dot", "-Tjson0"], input=drawn.encode(), capture_output=True, check=True, timeout=300
    )
    assert not result.stderr.strip()
    read = json.loads(result.stdout)
    nodes = [o for o in read.get("objects", []) if "nodes" not in o and "label" in o]
    nodes = [o for o in nodes if not o["name"].startswith("cluster")]
    assert len(nodes) == len(SCENES[name].nodes)
    assert len(read.get("edges", [])) == len(SCENES[name].edges)


@pytest.mark.parametrize("name", SCENES)
def test_mermaid_lines_are_of_known_forms(name):
    scene = SCENES[name]
    quoted = r'"[^"\n`<>]*"'
    forms = [
        r"flowchart LR",
        rf"  subgraph c\d+\[{quoted}\]",
        r"    direction LR",
        rf"    n\d+(\[{quoted}\]|\(\[{quoted}\]\)):::(initial|stock|aux|merged|cyclic)",
        r"  end",
        rf"  n\d+ (-->|==>|-\.->)(\|{quoted}\|)? n\d+",
        r"  classDef \w+ [\w:#, -]+",
        r"  linkStyle [\d,]+ stroke:#c62828,stroke-width:3px",
    ]
    lines = render(scene, "mermaid").splitlines()
    for line in lines:
        assert any(re.fullmatch(form, line) for form in forms), line
    assert sum(line.startswith("  subgraph") for line in lines) == len(scene.lanes)
    assert sum(bool(re.match(r"  n\d+ [-=]", line)) for line in lines) == len(scene.edges)


@pytest.mark.parametrize("name", SCENES)
def test_json_edges_name_its_nodes(name):
    read = json.loads(render(SCENES[name], "json"))
    ids = [node["id"] for node in read["nodes"]]
    assert len(ids) == len(set(ids))
    for edge in read["edges"]:
        assert edge["source"] in ids and edge["target"] in ids
    for group in read["groups"]:
        assert set(group["members"]) <= set(ids)
    assert {node["component"] for node in read["nodes"]} == {c["id"] for c in read["components"]}


def red(scene):
    return {(e.source, e.target) for e in scene.edges if e.cyclic}


def test_the_shortest_cycle_is_red():
    spec, _ = load(CASES / "cyclic" / "spec.yaml")
    cycle = {
        ("frontend.Ready", "core.HandleReady"),
        ("core.HandleReady", "core.Ready"),
        ("core.Ready", "frontend.Ready"),
    }
    assert red(collapsed(spec)) == cycle
    assert red(expanded(spec, {})) == cycle
    assert {n.id for n in collapsed(spec).nodes if n.cyclic} == {a for a, _ in cycle}


def test_a_wait_for_a_neighbour_is_no_cycle_but_one_for_all_is():
    c, s = specs.component, specs.state
    good = specs.spec("x", c("w", "S", s("A", "w[i-1].A", "w[i-2].B"), "B", replicas="n"))
    bad = specs.spec("x", c("w", "S", s("A", "w.*.B"), "B", replicas="n"))
    assert not red(collapsed(good))
    assert red(collapsed(bad)) == {("w.B", "w.A"), ("w.A", "w.B")}
    assert red(collapsed(specs.spec("x", c("w", "S", s("A", "w.A"))))) == {("w.A", "w.A")}


def test_absent_components_are_left_out():
    spec, _ = load(CASES / "small" / "spec.yaml")
    assert absent(spec, {"executor": "uni"}) == {"worker"}
    assert absent(spec, {"executor": "mp"}) == absent(spec, {}) == set()
    scene = expanded(spec, {}, {"worker"})
    assert [lane.id for lane in scene.lanes] == ["frontend", "core"]


def run(*args):
    return CliRunner().invoke(graph, [str(a) for a in args])


def test_command_draws_to_standard_output_and_to_files(tmp_path):
    spec = CASES / "small" / "spec.yaml"
    result = run(spec)
    assert result.exit_code == 0 and result.stdout.startswith('digraph "small"')
    for suffix, start in ((".svg", "<svg"), (".mmd", "flowchart"), (".json", "{")):
        path = tmp_path / f"x{suffix}"
        assert run(spec, "-o", path).exit_code == 0
        assert path.read_text().startswith(start)


def test_command_expands():
    spec = CASES / "small" / "spec.yaml"
    drawn = json.loads(run(spec, "-f", "json", "--expand", "--set", "workers=4").stdout)
    assert [c["id"] for c in drawn["components"]][2:] == [f"worker[{k}]" for k in range(4)]
    drawn = json.loads(run(spec, "-f", "json", "--expand", "--set", "executor=uni").stdout)
    assert len(drawn["components"]) == 2


def test_command_draws_a_cyclic_spec_and_exits_1():
    result = run(CASES / "cyclic" / "spec.yaml", "-f", "svg")
    assert result.exit_code == 1
    assert "error[CF301]" in result.stderr
    assert 'class="edge after cyclic"' in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--expand", "--set", "wrkers=2"], "did you mean 'workers'?"),
        (["--expand", "--set", "workers=two"], "a number from 0 up"),
        (["--expand", "--set", "workers"], "is not PARAM=VALUE"),
        (["--set", "workers=2"], "only with --expand"),
        (["-f", "gif"], "gif"),
        (["-o", "/nonexistent/x.svg"], "No such file"),
    ],
)
def test_command_refuses_wrong_usage(args, message):
    result = run(CASES / "small" / "spec.yaml", *args)
    assert result.exit_code in (1, 2)
    assert message in result.stderr


def test_command_reports_a_spec_that_cannot_be_read(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("a: [")
    result = run(path)
    assert result.exit_code == 1
    assert "error[CF1" in result.stderr and not result.stdout
