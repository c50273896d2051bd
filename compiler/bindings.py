"""``bind``: where transitions live in the engine, as sites or as Python callables."""

from __future__ import annotations

import ast
import re
from typing import Literal

from cfac.compiler.conditions import build_condition
from cfac.compiler.diagnostics import Diagnostics, Note, Span
from cfac.compiler.model import At, Binding, Ref, Site, SiteKind
from cfac.compiler.nodes import entries, items, text, text_node, texts, whole
from cfac.compiler.refs import index_span, parse_ref
from cfac.compiler.yamlpos import MapNode, Node, ScalarNode

_KINDS: tuple[SiteKind, ...] = ("begin", "wait", "publish", "take")
_ATS: tuple[At, ...] = (
    "entry", "exit", "before", "after", "around", "replace_callee", "process_exit",
)  # fmt: skip
_TARGETS: tuple[Literal["call", "import", "assign"], ...] = ("call", "import", "assign")
_PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*(\.([A-Za-z_]\w*|<locals>))*)?")
_CALLABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def build_bindings(node: Node | None, diagnostics: Diagnostics) -> tuple[Binding, ...]:
    """All bindings, in the order of the spec."""
    found: list[Binding] = []
    for key, value in entries(node):
        ref = parse_ref(key, diagnostics)
        if ref is None:
            continue
        if ref.index.kind != "none":
            diagnostics.error(
                "CF205",
                "a binding names its transition without an index",
                index_span(ref),
                help=f"write {ref.component}.{ref.state}; 'index' in a site says which replica",
            )
        if isinstance(value, MapNode):
            found.append(_binding(ref, value, diagnostics))
    return tuple(found)


def _binding(ref: Ref, node: MapNode, diagnostics: Diagnostics) -> Binding:
    sites = tuple(
        build_site(kind, item, node, diagnostics)
        for kind in _KINDS
        for item in items(node.get(kind))
        if isinstance(item, MapNode)
    )
    run = text_node(node.get("run"))
    run_key = node.key("run")
    if run_key is not None and sites:
        other = next(k for kind in _KINDS if (k := node.key(kind)) is not None)
        diagnostics.error(
            "CF216",
            "'run' cannot be mixed with sites in the engine",
            run_key.span,
            notes=[Note(f"{other.text!r} binds to the engine here", other.span)],
        )
    if run is not None and not _CALLABLE.fullmatch(run.text):
        hint = "write module:function, as in steps:load_config"
        message = f"{run.text!r} is not module:qualname"
        diagnostics.error("CF109", message, run.span, help=hint)
    if run_key is None and not any(node.key(kind) for kind in _KINDS):
        hint = "add 'publish' (where the state is reached), or 'run'"
        diagnostics.error("CF109", f"the binding of {ref} is empty", ref.span, help=hint)
    return Binding(ref, sites, run.text if run else None)


def build_site(kind: SiteKind, node: MapNode, binding: MapNode, diagnostics: Diagnostics) -> Site:
    """One site; ``binding`` gives the index and value that hold for all of its sites."""
    at_text = text(node.get("at"))
    at = next((known for known in _ATS if known == at_text), None)
    targets = [word for word in _TARGETS if node.key(word) is not None]
    if at is not None and kind in ("take", "start", "context") and at != "replace_callee":
        where = node.get("at")
        message = f"{kind!r} wraps a callee: it takes 'at: replace_callee', not {at!r}"
        diagnostics.error("CF109", message, where.span if where is not None else node.span)
    elif at is not None:
        _check_at(kind, at, targets, node, diagnostics)
    for later in targets[1:]:
        key = node.key(later)
        message = f"give one of 'call', 'import' and 'assign', not {later!r} beside {targets[0]!r}"
        diagnostics.error("CF109", message, key.span if key else node.span)
    places = texts(node.get("in"))
    for place in places:
        if not _PLACE.fullmatch(place.text):
            message = f"{place.text!r} is not module:qualname"
            hint = 'write it as in "vllm.v1.engine.core:EngineCore.__init__"'
            diagnostics.error("CF109", message, place.span, help=hint)
    names = [n.text for word in targets[:1] for n in texts(node.get(word))]
    names += [n.text for n in texts(node.get("any_of"))]
    any_of = node.key("any_of")
    if any_of is not None and not targets:
        message = "'any_of' adds names to 'call', 'import' or 'assign', and none is given"
        diagnostics.error("CF109", message, any_of.span)
    value = node.get("value") or (binding.get("value") if kind == "publish" else None)
    return Site(
        span=_site_span(node),
        kind=kind,
        at=at or "entry",
        places=tuple(place.text for place in places),
        target=targets[0] if targets else None,
        names=tuple(dict.fromkeys(names)),
        within=text(node.get("within")),
        arg_contains=text(node.get("arg_contains")),
        nth=whole(node.get("nth")),
        expect=whole(node.get("expect")) or 1,
        when=build_condition(node.get("when"), diagnostics),
        index=_expression(node.get("index") or binding.get("index"), diagnostics),
        value=_expression(value, diagnostics),
    )


def _site_span(node: MapNode) -> Span:
    """A site is shown at its ``in``, else at its mapping."""
    places = texts(node.get("in"))
    return places[0].span if places else node.span


def _check_at(
    kind: SiteKind,
    at: At,
    targets: list[Literal["call", "import", "assign"]],
    node: MapNode,
    diagnostics: Diagnostics,
) -> None:
    where = node.get("at")
    span = where.span if where is not None else node.span
    if at == "process_exit":
        if kind != "publish":
            message = f"'at: process_exit' is for 'publish', not for {kind!r}"
            hint = "the process is gone by then"
            diagnostics.error("CF109", message, span, help=hint)
        for word in ("in", *targets):
            key = node.key(word)
            if key is not None:
                message = f"'at: process_exit' takes no {word!r}: the channel's owner publishes it"
                diagnostics.error("CF109", message, key.span)
        return
    if node.key("in") is None:
        hint = 'say where it is, as in "vllm.v1.engine.core:EngineCore.__init__"'
        diagnostics.error("CF108", "the site: missing key 'in'", span, help=hint)
    if at in ("entry", "exit"):
        for word in targets:
            key = node.key(word)
            message = f"'at: {at}' is the function's own; it takes no {word!r}"
            diagnostics.error("CF109", message, key.span if key else span)
    elif not targets:
        message = f"'at: {at}' needs what to match: 'call', 'import' or 'assign'"
        diagnostics.error("CF109", message, span)
    elif at == "replace_callee" and targets[0] != "call":
        message = f"'at: replace_callee' matches a 'call', not {targets[0]!r}"
        diagnostics.error("CF109", message, span)


def _expression(node: Node | None, diagnostics: Diagnostics) -> str | None:
    found = text_node(node)
    return check_expression(found, diagnostics) if found is not None else None


def check_expression(node: ScalarNode, diagnostics: Diagnostics) -> str:
    """A Python expression, with its syntax checked."""
    try:
        compile(node.text, "<spec>", "eval", dont_inherit=True, flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        message = f"not a Python expression: {reason}"
        diagnostics.error("CF109", message, node.span)
    return node.text
