"""The documentation says what is: examples check, links resolve, commands exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from cfac.codegen.compile import compile_engine
from cfac.codegen.engine import find_engine
from cfac.compiler.api import check, load
from cfac.compiler.cli import cli
from cfac.compiler.diagnostics import Diagnostic, Diagnostics
from cfac.compiler.draw import render as draw
from cfac.compiler.draw.build import collapsed
from cfac.compiler.explanations import codes, example_files
from cfac.compiler.render import render
from cfac.compiler.schema import json_schema

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SPEC = ROOT / "specs" / "vllm" / "process-tree.yaml"
#: What the documentation calls the file that an example stands in.
NAME = "startup.yaml"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^# (refused|warned): (CF\d{3}(?:, CF\d{3})*)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block, and the text block that follows at once, if there is one."""

    where: str
    language: str
    text: str
    output: str | None


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        fences = list(_FENCE.finditer(text))
        for fence, following in zip_longest(fences, fences[1:]):
            between = text[fence.end() : following.start()].strip() if following else "."
            output = following[2] if following and following[1] == "text" and not between else None
            line = text.count("\n", 0, fence.start()) + 1
            where = f"{page.relative_to(ROOT)}:{line}"
            found.append(Block(where, fence[1], fence[2], output))
    return found


BLOCKS = blocks()
SPECS = [b for b in BLOCKS if b.language == "yaml" and "kind: StartupGraph" in b.text]


def names(cases: list[Block]) -> list[str]:
    return [block.where for block in cases]


def diagnose(text: str, folder: Path) -> list[Diagnostic]:
    """What load and check say about an example, in the order in which check prints it."""
    for name, content in example_files(text).items():
        (folder / (NAME if name == "spec.yaml" else name)).write_text(content, "utf-8")
    spec, loaded = load(NAME)
    found = Diagnostics(list(loaded))
    if spec is not None:
        found.extend(check(spec).diagnostics)
    return found.sorted()


def test_there_are_whole_specs_on_the_pages():
    pages = {block.where.partition(":")[0] for block in SPECS}
    assert {"README.md", "docs/spec.md", "docs/diagnostics.md"} <= pages


@pytest.mark.parametrize("block", SPECS, ids=names(SPECS))
def test_whole_specs_check_as_the_text_says(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = diagnose(block.text, tmp_path)
    mark = _MARK.search(block.text)
    wanted = dict.fromkeys(mark[2].split(", "), mark[1]) if mark else {}
    severities = {"error": "refused", "warning": "warned"}
    assert {d.code: severities[d.severity] for d in found} == wanted
    if block.output is not None and "[CF" in block.output:
        assert render(found) == block.output


def test_diagnostics_are_shown_with_their_output():
    shown = [b for b in SPECS if b.output and "[CF" in b.output]
    assert {block.where.partition(":")[0] for block in shown} >= {
        "README.md",
        "docs/diagnostics.md",
    }


# -- links ---------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(kept.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page):
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text("utf-8")))
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link} leads out of the repository"
        if fragment:
            assert fragment in anchors(target), f"{page.name}: {link}"


def test_every_page_is_linked_from_the_readme():
    text = (ROOT / "README.md").read_text("utf-8")
    for page in PAGES[1:]:
        assert f"({page.relative_to(ROOT).as_posix()})" in text, page.name


# -- commands ------------------------------------------------------------------------


def command_lines() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [line for b in _FENCE.finditer(text) if b[1] == "sh" for line in b[2].splitlines()]
        lines += re.findall(r"`(cfac [^`\n]+)`", _FENCE.sub("", text))
        lines += re.findall(r"Made by: (cfac [^\n(]+)", text)
        found += [(page.name, line) for line in lines if line.startswith("cfac ")]
    return found


COMMANDS = command_lines()


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{p}: {c}" for p, c in COMMANDS])
def test_commands_and_options_exist(page, line):
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = cli
    context = click.Context(cli, info_name="cfac")
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        assert inner is not None, f"{page}: {line!r}: no command {words[0]!r}"
        command, words = inner, words[1:]
    words = words[: words.index("--")] if "--" in words else words  # the rest is an engine's
    known = {"-h", "--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}
    for word in words:
        if word.startswith("-") and len(word) > 1:
            assert word.partition("=")[0] in known, f"{page}: {line!r}: no option {word}"
    for word in words:
        if word.startswith(("specs/", "examples/")):
            assert (ROOT / word).exists(), f"{page}: {line!r}: no file {word}"


def test_every_command_is_documented():
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    for name in cli.list_commands(click.Context(cli)):
        assert f"cfac {name}" in text, name


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for page in PAGES:
        text = page.read_text("utf-8")
        shell = "\n".join(b[2] for b in _FENCE.finditer(text) if b[1] == "sh")
        for target in re.findall(r"^make (\w+)|`make (\w+)`", shell + text, re.MULTILINE):
            name = "".join(target)
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"{page.name}: make {name}"


# -- generated parts and completeness ---------------------------------------------------


def test_the_table_of_codes_is_up_to_date_and_complete():
    script = ROOT / "docs" / "make_diagnostics.py"
    assert subprocess.run([sys.executable, script, "--check"]).returncode == 0, (
        "run: python docs/make_diagnostics.py"
    )
    text = (ROOT / "docs" / "diagnostics.md").read_text("utf-8")
    table = dict(re.findall(r"^\| (CF\d{3}) \| (\w+) \|", text, re.MULTILINE))
    assert sorted(table) == codes()
    source = "\n".join(
        path.read_text("utf-8")
        for folder in ("compiler", "codegen")
        for path in sorted((ROOT / folder).rglob("*.py"))
    )
    warns = set(re.findall(r"\.warning\(\s*\"(CF\d{3})\"", source))
    assert {code for code, severity in table.items() if severity == "warning"} == warns


def test_the_tables_of_versions_are_those_of_the_figures():
    script = ROOT / "docs" / "make_versions.py"
    assert subprocess.run([sys.executable, script, "--check"]).returncode == 0, (
        "run: python docs/make_versions.py"
    )


def test_codes_that_are_named_exist():
    for page in PAGES:
        text = page.read_text("utf-8")
        assert set(re.findall(r"\bCF[1-6]\d\d\b", text)) <= set(codes()), page.name


@pytest.mark.parametrize("name", ["process-tree", "fast-start"])
def test_the_pictured_graph_is_the_one_drawn_now(monkeypatch, name):
    monkeypatch.chdir(ROOT)  # the drawing names the spec's path as it is given
    spec, _ = load(f"specs/vllm/{name}.yaml")
    assert spec is not None
    picture = (ROOT / "docs" / "images" / f"{name}.svg").read_text("utf-8")
    assert picture == draw(collapsed(spec), "svg"), (
        f"run: cfac graph specs/vllm/{name}.yaml -o docs/images/{name}.svg"
    )


def test_the_pictures_name_no_machine():
    for picture in (ROOT / "docs" / "images").glob("*.svg"):
        assert not re.search(r">(?:[^<]*\s)?/\w+/", picture.read_text("utf-8")), picture.name


def schema_keys() -> set[str]:
    found: set[str] = set()

    def walk(node):
        if isinstance(node, dict):
            found.update(node.get("properties", {}))
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(json_schema())
    return found


@pytest.mark.parametrize("key", sorted(schema_keys()))
def test_the_reference_has_every_key(key):
    text = (ROOT / "docs" / "spec.md").read_text("utf-8")
    assert f"`{key}`" in text


def test_the_reference_has_every_position():
    text = (ROOT / "docs" / "spec.md").read_text("utf-8")
    site = json_schema()["$defs"]["SiteModel"]["properties"]
    for at in site["at"]["enum"]:
        assert f"| `{at}` |" in text, at


def test_environment_variables_are_documented():
    found: set[str] = set()
    for folder in ("runtime", "codegen"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".j2"):
                found |= set(re.findall(r"\bCFAC_[A-Z_]+\b", path.read_text("utf-8")))
    found.discard("CFAC_OWNER_TOKEN")  # between a root and its owner
    text = (ROOT / "docs" / "engine.md").read_text("utf-8")
    table = set(re.findall(r"^\| `(CFAC_[A-Z_]+)` \|", text, re.MULTILINE))
    assert table == found


def test_the_plan_is_described_field_by_field():
    from cfac.compiler.api import compile_plan

    spec, _ = load(str(ROOT / "examples" / "tiny_engine" / "startup.yaml"))
    assert spec is not None
    plan = compile_plan(spec)
    inner = [next(iter(plan[part].values())) for part in ("params", "components", "transitions")]
    text = (ROOT / "docs" / "plan.md").read_text("utf-8")
    for part in (plan, plan["engine"], *inner):
        for key in part:
            assert f"| `{key}` |" in text, key


def test_shown_patch_lines_are_generated():
    """The lines of the tiny engine are compiled; those of vLLM are bound in its spec."""
    folder = ROOT / "examples" / "tiny_engine"
    tiny, _ = load(str(folder / "startup.yaml"))
    assert tiny is not None
    diagnostics = Diagnostics()
    tree = find_engine(tiny, folder, diagnostics)
    assert tree is not None
    patch = compile_engine(tiny, tree).patch.decode()
    vllm, _ = load(str(SPEC))
    assert vllm is not None
    bound = {f"{b.ref.component}.{b.ref.state}:{s.kind}" for b in vllm.bindings for s in b.sites}
    shown = 0
    for block in BLOCKS:
        for line in block.text.splitlines() if block.language == "diff" else ():
            if not line.startswith("+") or line.startswith("+++"):
                continue
            shown += 1
            if "README" in block.where:
                marker = re.search(r"# cfac:(\S+)$", line)
                assert marker and marker[1] in bound, line
            else:
                assert f"\n{line}\n" in patch, line
    assert shown > 5


def test_the_loading_example_runs(tmp_path):
    page = (ROOT / "docs" / "loading.md").read_text("utf-8")
    (example,) = (b[2] for b in _FENCE.finditer(page) if "load_into" in b[2])
    (tmp_path / "model").mkdir()
    header = b'{"embed.weight":{"dtype":"U8","shape":[3,2],"data_offsets":[0,6]}}'
    file = len(header).to_bytes(8, "little") + header + b"abcdef"
    (tmp_path / "model" / "model.safetensors").write_bytes(file)
    result = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("embed.weight torch.uint8 [3, 2]\n6 bytes, {")


def test_the_python_example_runs(tmp_path):
    page = (ROOT / "docs" / "runtime.md").read_text("utf-8")
    (example,) = (b[2] for b in _FENCE.finditer(page) if "process_B" in b[2])
    script = tmp_path / "figure3.py"
    script.write_text(example)
    environment = {"PYTHONPATH": str(ROOT), "CFAC_RUNS": str(tmp_path / "runs")}
    result = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "what A found out\n"
