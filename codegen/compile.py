"""From a spec and an engine tree to a patch: all of it, or only diagnostics."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePath

import cfac
from cfac.codegen import edit as edits
from cfac.codegen.anchors import Match, Tree, resolve
from cfac.codegen.apply import originals
from cfac.codegen.calls import CallWriter, marker
from cfac.codegen.defer import deferrals, deferred_imports, report_refused
from cfac.codegen.engine import Engine
from cfac.codegen.lock import Touched, renew
from cfac.codegen.order import arrange
from cfac.codegen.package import package_files
from cfac.codegen.partial import Loss, narrow, offered, report_losses
from cfac.codegen.patch import Change, render_patch
from cfac.codegen.places import module_name
from cfac.codegen.positions import Point, Refused, in_coroutine, points, where
from cfac.codegen.positions import entry as entry_point
from cfac.codegen.report import Row, render_report
from cfac.codegen.sites import Bound, applicable, version_test
from cfac.codegen.source import Source
from cfac.codegen.survey import Survey, scope_function, survey
from cfac.codegen.versions import (
    check_attributes,
    check_imports,
    check_names,
    for_version,
    gone_recorded,
    present,
)
from cfac.compiler.calm import calm
from cfac.compiler.check import check
from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.model import Defer, SiteKind, Spec, Test
from cfac.compiler.plan import compile_plan, render_plan
from cfac.compiler.schedule_checks import birth_prefix


@dataclass(slots=True)
class CompileResult:
    """What a compilation gives.  With an error in ``diagnostics`` all texts are empty."""

    diagnostics: Diagnostics
    patch: bytes = b""
    plan: str = ""
    report: str = ""
    lock: str = ""
    bound: int = 0
    declared: int = 0
    replaces: bool = False  # another patch is applied to the tree
    files: tuple[str, ...] = ()
    survey: Survey | None = None  # where the anchors are, those without a place included
    changes: tuple[Change, ...] = ()  # what the patch says, for the other back end
    losses: tuple[Loss, ...] = ()  # what was left out
    rows: tuple[Row, ...] = ()  # the edits, as the report lists them

    @property
    def ok(self) -> bool:
        """Whether there is a patch."""
        return not self.diagnostics.errors

    def outputs(self, name: str) -> dict[str, bytes]:
        """File name -> content of what belongs in the output folder."""
        return {
            f"{name}.patch": self.patch,
            f"{name}.plan.json": self.plan.encode(),
            f"{name}.lock": self.lock.encode(),
            f"{name}.md": self.report.encode(),
        }


@dataclass(slots=True)
class _File:
    source: Source
    inserts: list[edits.Insert] = field(default_factory=list)
    wraps: list[edits.Wrap] = field(default_factory=list)
    guards: list[edits.Guard] = field(default_factory=list)


@dataclass(slots=True)
class _Work:
    spec: Spec
    tree: Tree
    diagnostics: Diagnostics
    files: dict[str, _File] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    touched: list[Touched] = field(default_factory=list)
    published: set[str] = field(default_factory=set)
    survey: Survey = field(default_factory=lambda: Survey("", ""))

    def file(self, source: Source) -> _File:
        return self.files.setdefault(source.path, _File(source))


def spec_hash(spec: Spec) -> str:
    """One hash of a spec and all it includes, independent of where the files are."""
    parts = sorted(
        f"{PurePath(name).name}\0{hashlib.sha256(text.encode()).hexdigest()}"
        for name, text in spec.sources.items()
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@calm()
def compile_engine(
    spec: Spec,
    engine: Engine,
    *,
    lock: str | None = None,
    accept: bool = False,
    applied: bytes | None = None,
    allow_partial: bool = False,
) -> CompileResult:
    """Compile a checked spec for an engine tree.  Reads the tree, writes nothing.

    ``lock`` is the text of the lock file of an earlier compilation.  ``applied`` is its
    patch: where the tree has it applied, the tree is read as if it had not.  With
    ``allow_partial``, what is there for speed only and has no place in this engine is
    left out, and reported (see ``partial``).
    """
    declared = present(spec, engine.version)
    diagnostics = Diagnostics()
    result = CompileResult(diagnostics, declared=len(declared))
    before = None if applied is None else originals(applied, engine.root)
    tree = Tree(engine.root, engine.package, before or {})
    if before is None and (engine.folder / "_cfac" / "__init__.py").exists():
        diagnostics.error(
            "CF411",
            f"{engine.folder / '_cfac'} exists: this tree is patched already",
            spec.engine.span if spec.engine else spec.span,
            help="take the patch out with cfac unapply, or name an unpatched tree with --engine",
        )
        return result
    spec = for_version(spec, engine.version, diagnostics)
    work = _bind(spec, tree, engine)
    if work.diagnostics.errors:
        partial = narrow(
            spec, tree, engine.version, lambda smaller: _bind(smaller, tree, engine).diagnostics
        )
        if allow_partial and partial.losses:
            spec, result.losses = partial.spec, tuple(partial.losses)
            work = _bind(spec, tree, engine)
            work.diagnostics.extend(e for e in check(spec).diagnostics if e.severity == "error")
            report_losses(partial, work.diagnostics)
        else:
            work.diagnostics.items = [offered(error, partial) for error in work.diagnostics]
    _warn(work, engine)
    diagnostics.extend(work.diagnostics)
    work.diagnostics = diagnostics
    result.survey = work.survey

    def holds(test: Test) -> bool:
        return version_test(test, engine.version, diagnostics)

    if diagnostics.errors:
        return result
    changes = _edit(work)
    if diagnostics.errors:
        return result
    plan = render_plan(compile_plan(spec, holds))
    for path, data in package_files(engine.package, spec.name, plan, cfac.__version__).items():
        changes.append(Change(path, None, ((0, data),)))
    new_lock = renew(
        lock,
        spec.name,
        engine.package,
        engine.version,
        work.touched,
        diagnostics,
        accept=accept,
        anchors=[asdict(anchor) for anchor in work.survey.anchors],
    )
    result.patch = render_patch(
        spec.name, spec_hash(spec), engine.package, engine.version, cfac.__version__, changes
    )
    result.plan, result.lock = plan, new_lock
    result.replaces = before is not None and applied != result.patch
    result.bound = len(work.published & declared)
    result.changes = tuple(changes)
    result.rows = tuple(work.rows)
    result.files = tuple(sorted(change.path for change in changes))
    result.report = render_report(
        spec, engine.package, engine.version, work.rows, work.published, result.losses
    )
    return result


def _bind(spec: Spec, tree: Tree, engine: Engine) -> _Work:
    """Find the place of every site; everything that makes an error is found here."""
    work = _Work(spec, tree, Diagnostics())
    bounds = applicable(spec, engine.version, work.diagnostics)
    work.survey = survey(tree, engine.version, bounds, spec.defers)
    for bound in bounds:
        _place(work, bound)
    for component in spec.components.values():
        for state in birth_prefix(spec, component):
            name = f"{component.name}.{state.name}"
            work.published.add(name)
            work.rows.append(Row(name, "publish", "birth", "", 0, "the child's birth", ""))
    for deferred in spec.defers:
        _defer(work, deferred, len(bounds))
    _check_params(work, bounds)
    check_imports(spec, tree, engine.version, work.diagnostics)
    for file in work.files.values():
        _add_import(work, file)
    return work


def _warn(work: _Work, engine: Engine) -> None:
    """What may be wrong, and changes nothing of what is bound."""
    _check_recordings(work, engine)
    check_names(work.spec, work.tree, engine.version, work.diagnostics)
    check_attributes(work.spec, work.tree, engine.version, work.diagnostics)


def _place(work: _Work, bound: Bound) -> None:
    """Resolve one site and note its edits."""
    site, label = bound.site, f"{bound.transition} {bound.site.kind}"
    if site.kind == "publish":
        work.published.add(bound.transition)
    if site.at == "process_exit":
        work.rows.append(Row(bound.transition, site.kind, site.at, "", 0, "process exit", ""))
        CallWriter(work.spec, bound, work.diagnostics).refuse_at_exit()
        return
    if site.at == "around" and site.kind != "publish":
        work.diagnostics.error(
            "CF407",
            f"{label}: 'around' is for publish (it puts begin before and publish after)",
            site.span,
        )
        return
    if site.at == "replace_callee" and site.kind in ("wait", "begin", "stop"):
        work.diagnostics.error(
            "CF407",
            f"{label}: 'replace_callee' is for publish (it publishes when the call returns)",
            site.span,
            help=f"bind the {site.kind} 'before' the call",
        )
        return
    match = resolve(site, work.tree, label, work.diagnostics)
    if match is None:
        return
    work.touched.append(Touched(match.place, work.survey.functions[match.place], site.span))
    if site.at == "replace_callee":
        _replace(work, bound, match)
        return
    for node in match.nodes or (None,):
        try:
            found = points(match.source, match.scope, node, site.at)
        except Refused as refused:
            _refuse(work, bound, match, refused)
            continue
        for role, point in found:
            if site.kind == "wait" and in_coroutine(match.source, point):
                work.diagnostics.warning(
                    "CF417",
                    f"{label}: {match.source.path}:{point.line} is in a coroutine: the wait "
                    "blocks its whole event loop",
                    site.span,
                    help="bind the wait in a function that is not async",
                )
            kind: SiteKind = "begin" if role == "before" and site.at == "around" else site.kind
            _insert(work, bound, match, kind, point)
            if kind == "wait":  # an event of its own: deleting the wait leaves it
                _insert(work, bound, match, "begin", point)


def _insert(work: _Work, bound: Bound, match: Match, kind: SiteKind, point: Point) -> None:
    code = CallWriter(work.spec, bound, work.diagnostics).write(kind, match.source, point)
    work.file(match.source).inserts.append(
        edits.Insert(point, code, marker(bound.transition, kind), kind, bound.order)
    )
    work.rows.append(
        Row(
            bound.transition,
            kind,
            bound.site.at,
            match.source.path,
            point.line,
            match.place,
            code,
        )
    )


def _replace(work: _Work, bound: Bound, match: Match) -> None:
    writer = CallWriter(work.spec, bound, work.diagnostics)
    for node in match.nodes:
        if not isinstance(node, ast.Call):
            refused = Refused("only a call has a callee to replace", "name a call")
            _refuse(work, bound, match, refused)
            continue
        if any(isinstance(above, ast.JoinedStr) for above, _, _ in match.source.ancestors(node)):
            _refuse(work, bound, match, Refused(f"line {node.lineno}: the call is in an f-string"))
            continue
        if bound.site.kind == "take" and _is_awaited(match.source, node):
            awaited = "the call is awaited, and what is carried is not awaitable"
            _refuse(work, bound, match, Refused(f"line {node.lineno}: {awaited}"))
            continue
        options = writer.options(bound.site.kind, match.source, where(match.source, node))
        parts = [f'"{bound.transition}"', match.source.segment(node.func), *options]
        hook = "replaced" if bound.site.kind == "publish" else bound.site.kind
        work.file(match.source).wraps.append(
            edits.Wrap(node.func, bound.transition, bound.order, ", ".join(options), hook)
        )
        text = f"_cfac.{hook}({', '.join(parts)})"
        work.rows.append(
            Row(
                bound.transition,
                bound.site.kind,
                bound.site.at,
                match.source.path,
                node.lineno,
                match.place,
                " ".join(text.split()),
            )
        )


def _is_awaited(source: Source, call: ast.Call) -> bool:
    return any(
        isinstance(above, ast.Await) and above.value is call
        for above, _, _ in source.ancestors(call)
    )


def _defer(work: _Work, entry: Defer, order: int) -> None:
    """Note the edits of one entry of ``defer``; the outermost of two wraps comes last."""
    if entry.kind == "import":
        _defer_import(work, entry, order)
        return
    for found in deferrals(entry, work.tree, work.diagnostics):
        text = f"stays: {found.left}"
        if found.callee is not None:
            hook = "later" if entry.until else "deferred"
            wrap = edits.Wrap(found.callee, entry.label, order, found.options, hook)
            work.file(found.source).wraps.append(wrap)
            parts = (f'"{entry.label}"', found.source.segment(found.callee), found.options)
            text = f"_cfac.{hook}({', '.join(part for part in parts if part)})"
        if found.runs is not None:
            place = f"{found.place}:{found.runs.name}"
            known = scope_function(found.runs, found.source.path)
            work.touched.append(Touched(place, known, entry.span))
        work.rows.append(
            Row(
                entry.label,
                entry.kind,
                entry.until or "first call",
                found.source.path,
                found.line,
                found.place,
                " ".join(text.split()),
            )
        )


def _defer_import(work: _Work, entry: Defer, order: int) -> None:
    """Make the import conditional, and put it before its first use in each function."""
    for source, found in deferred_imports(entry, work.tree, work.diagnostics):
        file, text = work.file(source), edits.quote(found.text)
        names = edits.quote(" ".join(found.names))
        condition = f"_cfac.now({text}, {names}, globals())"
        file.guards.append(edits.Guard(found.statement, condition))
        code = f"_cfac.use({text}, globals())"
        places = [(found.statement.lineno, module_name(source.path), f"if {condition}: ...")]
        for user in found.users:
            try:
                point = found.point(source, user)
            except Refused as refused:
                report_refused(entry, source, f"{user.name}: {refused.reason}", work.diagnostics)
                continue
            insert = edits.Insert(point, code, marker(entry.label, "use"), "use", order)
            file.inserts.append(insert)
            places.append((point.line, f"{module_name(source.path)}:{user.name}", code))
        work.rows += [
            Row(entry.label, "import", "first use", source.path, line, place, shown)
            for line, place, shown in places
        ]


def _refuse(work: _Work, bound: Bound, match: Match, refused: Refused) -> None:
    work.diagnostics.error(
        "CF407",
        f"{bound.transition} {bound.site.kind}: cannot bind at: {bound.site.at} in "
        f"{match.place} ({match.source.path}): {refused.reason}",
        bound.site.span,
        help=refused.hint,
    )


def _check_params(work: _Work, bounds: Sequence[Bound]) -> None:
    """A parameter that is read at a transition needs a publish site there."""
    lines = {b.transition for b in bounds if b.site.kind == "publish"}
    for param in work.spec.params.values():
        for source in param.sources:
            name = f"{source.at.component}.{source.at.state}" if source.at else None
            if name is not None and name not in lines:
                work.diagnostics.error(
                    "CF416",
                    f"parameter {param.name!r} is read at {name}, which has no publish site",
                    source.span,
                    help=f"bind {name}: publish",
                )


def _check_recordings(work: _Work, engine: Engine) -> None:
    """Another version imports other modules: what is recorded may be wrong, never harmful."""
    for name, (version, span) in work.spec.recordings.items():
        if version not in (None, engine.version):
            work.diagnostics.warning(
                "CF418",
                f"{name} was recorded with {engine.package} {version}, and this is "
                f"{engine.version}" + gone_recorded(work.spec, work.tree),
                span,
                help=f"record again: cfac record --imports {work.spec.file} -- COMMAND",
            )


def _add_import(work: _Work, file: _File) -> None:
    source = file.source
    span = work.spec.engine.span if work.spec.engine else work.spec.span
    line = edits.clash(source)
    if line is not None:
        patched = "# cfac:" in source.text
        work.diagnostics.error(
            "CF411",
            f"{source.path}:{line}: "
            + ("this file is patched already" if patched else "the name '_cfac' is taken"),
            span,
            help="take the patch out with cfac unapply" if patched else None,
        )
        return
    try:
        point = entry_point(source, source.tree)
    except Refused as refused:
        work.diagnostics.error(
            "CF407",
            f"{source.path}: no place for the import of _cfac: {refused.reason}",
            span,
            help=refused.hint,
        )
        return
    code = f"from {work.tree.package} import _cfac"
    file.inserts.append(edits.Insert(point, code, "cfac:import", "import", -1))


def _edit(work: _Work) -> list[Change]:
    changes: list[Change] = []
    for path in sorted(work.files):
        file = work.files[path]
        raw = file.source.raw
        try:
            inserts = arrange(work.spec, file.inserts)
            edited = edits.edit(file.source, inserts, file.wraps, file.guards)
        except edits.EditError as error:
            work.diagnostics.error("CF412", str(error), work.spec.span)
            continue
        changes.append(Change(path, raw, edited.splices))
    return changes
