"""The text of the calls that are put into the engine."""

from __future__ import annotations

import ast

from cfac.codegen.positions import Point
from cfac.codegen.scope import BadExpression, parse_expression, unbound
from cfac.codegen.sites import Bound
from cfac.codegen.source import Source
from cfac.compiler.diagnostics import Diagnostics, Span
from cfac.compiler.model import PROCESS_KINDS, Param, SiteKind, Spec
from cfac.compiler.model import Source as ParamSource

MARK = "cfac"


def marker(transition: str, kind: str) -> str:
    """The comment that ends an inserted line."""
    return f"{MARK}:{transition}:{kind}"


def param_sources(spec: Spec, transition: str) -> list[tuple[Param, ParamSource]]:
    """The parameters whose value is read where a transition is published."""
    found = {
        param.name: (param, source)
        for param in spec.params.values()
        for source in reversed(param.sources)  # of several, the first counts
        if source.value is not None
        and source.at is not None
        and f"{source.at.component}.{source.at.state}" == transition
    }
    return list(found.values())


class CallWriter:
    """Writes one site's calls; checks the names in their expressions at each point."""

    def __init__(self, spec: Spec, bound: Bound, diagnostics: Diagnostics) -> None:
        self.bound = bound
        self.diagnostics = diagnostics
        self.params = param_sources(spec, bound.transition)
        if bound.site.value is not None and bound.site.kind != "publish":
            self.diagnostics.error(
                "CF408",
                f"{bound.transition}: a {bound.site.kind} site has no value",
                bound.site.span,
                help="only publish carries a value",
            )
        if bound.site.index is not None and bound.site.kind in PROCESS_KINDS:
            self.diagnostics.error(
                "CF408",
                f"{bound.transition}: a {bound.site.kind} site has no index",
                bound.site.span,
                help="the replica's index comes from the process's name",
            )

    def write(self, kind: SiteKind, source: Source, point: Point) -> str:
        """``_cfac.publish("core.Ready", index=lambda: rank)``."""
        parts = [f'"{self.bound.transition}"', *self.options(kind, source, point)]
        return f"_cfac.{kind}({', '.join(parts)})"

    def options(self, kind: SiteKind, source: Source, point: Point) -> list[str]:
        """The keyword arguments of a site's call."""
        site = self.bound.site
        number = self.bound.numbers.get(kind)
        parts = [] if number is None else [f"when={number}"]
        if site.index is not None:
            parts.append(f"index=lambda: {self._expression(site.index, site.span, source, point)}")
        if site.value is not None and kind == "publish":
            parts.append(f"value=lambda: {self._expression(site.value, site.span, source, point)}")
        if kind == "publish" and self.params:
            items = ", ".join(
                f'"{param.name}": '
                + self._expression(origin.value or "", origin.span, source, point)
                for param, origin in self.params
            )
            parts.append(f"params=lambda: {{{items}}}")
        return parts

    def _expression(self, text: str, span: Span, source: Source, point: Point) -> str:
        where = f"{source.path}:{min(point.line, source.lines)}"
        try:
            flat, tree = parse_expression(text)
        except BadExpression as error:
            self.diagnostics.error("CF408", f"{self.bound.transition}: {error}", span)
            return "None"
        for _, problem, help_text in unbound(source, point, tree):
            self.diagnostics.error(
                "CF408",
                f"{self.bound.transition}: in {flat!r}, {problem} (at {where})",
                span,
                help=help_text,
            )
        try:
            source.encode(flat)
        except UnicodeEncodeError:
            flat = flat.encode("ascii", "backslashreplace").decode()
            if not _means(flat, tree):
                self.diagnostics.error(
                    "CF408",
                    f"{self.bound.transition}: {text!r} cannot be written in the encoding of "
                    f"{source.path} ({source.encoding})",
                    span,
                )
        return f"({flat})" if _needs_parentheses(flat) else flat

    def refuse_at_exit(self) -> None:
        """A process that is gone has no value to give."""
        asked = ["a value"] if self.bound.site.value is not None else []
        asked += [f"parameter {param.name!r}" for param, _ in self.params]
        if asked:
            self.diagnostics.error(
                "CF408",
                f"{self.bound.transition}: {', '.join(asked)} cannot be read at: process_exit",
                self.bound.site.span,
                help="nothing runs there; read it at an earlier state",
            )


def _means(text: str, tree: ast.expr) -> bool:
    try:
        return ast.dump(ast.parse(text, mode="eval").body) == ast.dump(tree)
    except SyntaxError:
        return False


def _needs_parentheses(text: str) -> bool:
    return isinstance(ast.parse(text, mode="eval").body, ast.Tuple) and not text.startswith("(")
