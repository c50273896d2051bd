"""What a spec says of one version of the engine, beside its sites.

A site that does not bind is found by ``anchors``.  But a process of another name, a
module that is gone, or an attribute that a parameter reads has no site: it would be
missed at run time, with a line in a log.  These are checked here, in the source.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cfac.codegen import candidates
from cfac.codegen.anchors import Tree
from cfac.codegen.places import dotted, module_file
from cfac.codegen.sites import version_holds
from cfac.codegen.source import SourceError, from_bytes
from cfac.compiler.diagnostics import Diagnostics, Note, Span
from cfac.compiler.model import Component, Param, Process, Spec, State, Strategy

_SHOWN = 4
_MAKES_PROCESS = re.compile(rb"Process\s*\(")
_SUFFIXES = (".so", ".pyd")  # extension modules


def for_version(spec: Spec, version: str, diagnostics: Diagnostics) -> Spec:
    """What a spec says of this version of the engine.

    Each process has its one name.  A component that this version does not have is bound
    nowhere and does nothing; the plan keeps it, as one that is never there.
    """
    components = dict(spec.components)
    absent: set[str] = set()
    for component in spec.components.values():
        process = component.process
        if not version_holds(component.when, version, diagnostics):
            absent.add(component.name)
            components[component.name] = _idle(component)
            continue
        if process is None or not process.names:
            continue
        here = [n for n in process.names if version_holds(n.when, version, diagnostics)]
        if len(here) != 1:
            count = "none" if not here else f"{len(here)}"
            span = here[1].span if here else process.names[0].span
            diagnostics.error(
                "CF409",
                f"{component.name}: {count} of the names of its process "
                f"{'hold' if len(here) > 1 else 'holds'} for version {version}",
                span,
                help="give each a 'when' with a version so that exactly one holds",
            )
            continue
        named = replace(process, name=here[0].text, names=(here[0],))
        components[component.name] = replace(component, process=named)
    bindings = tuple(b for b in spec.bindings if b.ref.component not in absent)
    return replace(spec, components=components, bindings=bindings)


def _idle(component: Component) -> Component:
    """A component without anything that an engine's source would have to hold."""
    states = tuple(replace(s, imports=(), recorded_part=None) for s in component.states)
    process = component.process and replace(
        component.process, strategy=Strategy(), name=None, names=(), stop=(), start=(), context=()
    )
    return replace(component, states=states, process=process, policy=None)


def present(spec: Spec, version: str) -> set[str]:
    """The transitions of the components that this version of the engine has.

    Those of a library's components are not the engine's.
    """
    return {
        f"{component.name}.{state.name}"
        for component, state in spec.transitions()
        if spec.run_of(component.name) != "local"
        and version_holds(component.when, version, Diagnostics())
    }


def check_names(spec: Spec, tree: Tree, version: str, diagnostics: Diagnostics) -> None:
    """Warn where the engine makes no process of the name that the spec gives.

    Names that the engine computes cannot be seen, so this is no error.
    """
    wanted = [(c, c.process) for c in spec.components.values() if c.process and c.process.name]
    if not wanted:
        return
    made = list(dict.fromkeys(_made_names(tree)))
    for component, process in wanted:
        name = (process.name or "").replace("{i}", "0")
        if any(pattern.fullmatch(name) for pattern, _, _ in made):
            continue
        near = sorted(
            made, key=lambda m: -difflib.SequenceMatcher(None, m[1], process.name or "").ratio()
        )
        diagnostics.warning(
            "CF431",
            f"{component.name}: {tree.package} {version} makes no process with name="
            f"{process.name!r} in plain sight: its states may not be seen",
            _name_span(process),
            notes=[Note(f"{where}: name={text}") for _, text, where in near[:_SHOWN]],
            help="a name that only some versions have: name: [{is: NAME, when: {version: ...}}]",
        )


def _name_span(process: Process) -> Span:
    return process.names[0].span if process.names else process.span


def _made_names(tree: Tree) -> Iterator[tuple[re.Pattern[str], str, str]]:
    """The ``name=`` of every call of a ``…Process``: a pattern, its text, its place."""
    for path in _files(tree):
        name = path.relative_to(tree.root).as_posix()
        try:
            raw = tree.unpatched.get(name) or path.read_bytes()
            if not _MAKES_PROCESS.search(raw):
                continue
            source = from_bytes(raw, name)
        except (OSError, SourceError):
            continue
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Call) or not dotted(node.func)[-1].endswith("Process"):
                continue
            for keyword in node.keywords:
                if keyword.arg == "name":
                    for value in _branches(keyword.value):
                        pattern = _pattern(value)
                        if pattern is not None:
                            where = f"{name}:{value.lineno}"
                            yield re.compile(pattern), ast.unparse(value), where


def _branches(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.IfExp):
        yield from _branches(value.body)
        yield from _branches(value.orelse)
    else:
        yield value


def _pattern(value: ast.expr) -> str | None:
    """A regular expression for what a name may be; None if nothing of it is literal."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return re.escape(value.value)
    if not isinstance(value, ast.JoinedStr):
        return None
    parts = [
        re.escape(part.value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        else ".+"
        for part in value.values
    ]
    return "".join(parts) if any(part != ".+" for part in parts) else None


def check_imports(spec: Spec, tree: Tree, version: str, diagnostics: Diagnostics) -> None:
    """Report modules of the engine that a spec imports early and that this version lacks."""
    for component, state in spec.transitions():
        gone = gone_imports(state, tree)
        if not gone:
            continue
        near = {m: n for m in gone for n in candidates.nearest_modules(tree.index(), m)[:1]}
        diagnostics.error(
            "CF432",
            f"{component.name}.{state.name} imports {', '.join(gone)}, which {tree.package} "
            f"{version} does not have",
            state.span,
            notes=[Note(f"nearest to {module}: {name}") for module, name in near.items()],
            help="name the modules of this version, or none",
        )


def gone_imports(state: State, tree: Tree) -> tuple[str, ...]:
    """The engine's modules that a spec itself names for a state's work and that are gone."""
    return tuple(m for m in explicit(state) if _of(tree, m) and not _exists(tree, m))


def check_attributes(spec: Spec, tree: Tree, version: str, diagnostics: Diagnostics) -> None:
    """Warn where a parameter's value reads an attribute that nothing in the engine has."""
    wanted: dict[str, list[tuple[Param, str, Span]]] = {}
    for param in spec.params.values():
        for source in param.sources:
            for name in _attributes(source.value or ""):
                wanted.setdefault(name, []).append((param, source.value or "", source.span))
    left = {name.encode(): uses for name, uses in wanted.items()}
    for path in _files(tree):
        if not left:
            return
        raw = path.read_bytes()
        for word in [w for w in left if w in raw]:
            if re.search(rb"\b" + re.escape(word) + rb"\b", raw):
                del left[word]
    for word, uses in left.items():
        for param, value, span in uses:
            diagnostics.warning(
                "CF434",
                f"parameter {param.name!r} reads {value}, and nothing in {tree.package} {version} "
                f"is called {word.decode()!r}: it would keep its early value",
                span,
                help="give an expression that this version has",
            )


def _attributes(expression: str) -> list[str]:
    try:
        tree = ast.parse(expression.strip(), mode="eval") if expression else ast.Module([], [])
    except SyntaxError:
        return []  # reported where it is written
    return [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]


def _files(tree: Tree) -> Iterator[Path]:
    return iter(sorted((tree.root / tree.package).rglob("*.py")))


def gone_recorded(spec: Spec, tree: Tree) -> str:
    """Which recorded modules of the engine this version does not have; "" if it has all."""
    found = {m for _, state in spec.transitions() for m in recorded(state) if _of(tree, m)}
    gone = sum(not _exists(tree, module) for module in found)
    return f"; {gone} of {len(found)} recorded modules of the engine are gone" if gone else ""


def explicit(state: State) -> tuple[str, ...]:
    """The modules that the spec itself names for a state's work."""
    first, last = state.recorded_part or (0, 0)
    return (*state.imports[:first], *state.imports[last:])


def recorded(state: State) -> tuple[str, ...]:
    """The modules of a state's work that come from a recorded start."""
    first, last = state.recorded_part or (0, 0)
    return state.imports[first:last]


def _of(tree: Tree, module: str) -> bool:
    return module.split(".")[0] == tree.package


def _exists(tree: Tree, module: str) -> bool:
    """Whether a module, a package (a namespace too) or an extension module is in the tree."""
    if module_file(tree.root, module) is not None:
        return True
    path = tree.root.joinpath(*module.split("."))
    return path.is_dir() or any(
        file.name.endswith(_SUFFIXES) for file in path.parent.glob(f"{path.name}.*")
    )
