"""A merged document to the frozen spec.

The shape is already checked and reported, so this pass is tolerant: what has the
wrong shape is left out without a second message.  It reports what shapes cannot
say: reference syntax, durations, and keys that exclude each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from cfac.compiler.bindings import build_bindings, check_expression
from cfac.compiler.conditions import build_condition, build_specifier
from cfac.compiler.defers import build_defers
from cfac.compiler.diagnostics import Diagnostics, Span
from cfac.compiler.later import refuse_later
from cfac.compiler.layouts.read import build_refines
from cfac.compiler.model import (
    Component,
    Dependency,
    Effect,
    Engine,
    Layout,
    MergeGroup,
    Param,
    Ref,
    Source,
    Spec,
    State,
    Unsupported,
)
from cfac.compiler.nodes import boolean, entries, items, scalar, text, text_node, texts, whole
from cfac.compiler.overlay import state_entry
from cfac.compiler.refs import NAME_PATTERN, own_ref, parse_ref
from cfac.compiler.remembers import build_remembers
from cfac.compiler.schedule import (
    build_before,
    build_device,
    build_policy,
    build_process,
    build_work,
)
from cfac.compiler.split import build_split
from cfac.compiler.yamlpos import ListNode, MapNode, Node, ScalarNode

_COST = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(us|ms|s|min)?")
_UNITS = {None: 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_KINDS = ("reads", "writes", "holds", "starts_threads", "initializes", "openmp", "forks")
_LAYOUT_KEY = re.compile(rf"({NAME_PATTERN})\.({NAME_PATTERN})")


def build_spec(root: MapNode, file: str, diagnostics: Diagnostics) -> Spec | None:
    """The spec that ``root`` describes; None where it has no components."""
    refuse_later(root, "spec", diagnostics)
    top = Span(file, 1, 1, 2)
    name = text_node(root.get("name"))
    if root.get("name") is None:
        diagnostics.error("CF108", "the spec: missing key 'name'", root.span)
    if not entries(root.get("components")):
        if isinstance(root.get("components"), MapNode | None):
            diagnostics.error("CF108", "the spec declares no components", root.span)
        return None
    builder = _Builder(diagnostics)
    components = {
        key.text: builder.component(key, value) for key, value in entries(root.get("components"))
    }
    chain_key = root.key("chain")
    return Spec(
        name=name.text if name else "unnamed",
        file=file,
        span=name.span if name else top,
        components=components,
        params={key.text: builder.param(key, value) for key, value in entries(root.get("params"))},
        chain=builder.chain(root.get("chain")),
        chain_span=chain_key.span if chain_key else None,
        merges=tuple(builder.merges(root.get("merge"))),
        bindings=build_bindings(root.get("bind"), diagnostics),
        defers=tuple(build_defers(root, diagnostics)),
        remembers=tuple(build_remembers(root, diagnostics)),
        layouts=builder.layouts(root.get("layouts")),
        refines=build_refines(root.get("refine"), diagnostics),
        engine=builder.engine(root),
        transport=_transport(root),
    )


def _transport(root: MapNode) -> Literal["thread", "process", "coroutine"]:
    channel = root.get("channel")
    found = text(channel.get("transport")) if isinstance(channel, MapNode) else None
    if found == "thread":
        return "thread"
    return "coroutine" if found == "coroutine" else "process"


class _Builder:
    """Builds the parts of a spec."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self.diagnostics = diagnostics

    def ref(self, node: Node | None) -> Ref | None:
        """A reference; None where there is none or it is malformed."""
        found = text_node(node)
        return parse_ref(found, self.diagnostics) if found is not None else None

    # -- components ----------------------------------------------------------

    def component(self, key: ScalarNode, node: Node) -> Component:
        """A component with its states."""
        body = node if isinstance(node, MapNode) else MapNode((), node.span)
        if isinstance(node, MapNode) and node.get("states") is None:
            message = f"components.{key.text}: missing key 'states'"
            self.diagnostics.error("CF108", message, key.span)
        replicas = body.get("replicas")
        indexed = replicas is not None and scalar(replicas) is not None
        states = [
            self.state(entry[0], entry[1], key.text, indexed)
            for item in items(body.get("states"))
            if (entry := state_entry(item)) is not None
        ]
        return Component(
            name=key.text,
            span=key.span,
            states=tuple(states),
            replicas=(whole(replicas) or text(replicas)) if indexed else None,
            when=build_condition(body.get("when"), self.diagnostics),
            process=build_process(body, key.text, self.diagnostics),
            policy=build_policy(body, key.text, indexed, self.diagnostics),
        )

    def state(self, name: ScalarNode, node: MapNode | None, owner: str, indexed: bool) -> State:
        """A state with its options."""
        options = node if node is not None else MapNode((), name.span)
        effects = options.get("effects")
        work = build_work(options, self.diagnostics)
        device = build_device(options, self.diagnostics)
        declared = tuple(
            found
            for item in (effects.items if isinstance(effects, ListNode) else ())
            if isinstance(item, MapNode) and (found := self.effect(item, owner, indexed))
        )
        declared += build_before(options.get("before"), self.diagnostics)
        declared += build_split(options, self.diagnostics)
        if device is not None:  # for ever: no fork of the process may come later
            declared = (*declared, Effect("initializes", "device", None, device.span))
        return State(
            name=name.text,
            span=name.span,
            aux=boolean(options.get("aux")),
            after=tuple(self.after(options.get("after"))),
            cost=self.cost(options.get("cost")),
            effects=declared,
            device=device,
            imports=work.imports,
            imports_when=work.when,
            idle_while=work.idle_while,
            recorded=work.recorded,
        )

    def after(self, node: Node | None) -> list[Dependency]:
        """The dependencies of an ``after``."""
        found: list[Dependency] = []
        for item in items(node):
            if isinstance(item, MapNode):
                ref = self.ref(item.get("state"))
                schedule, reason = boolean(item.get("schedule")), text(item.get("reason"))
            else:
                ref, schedule, reason = self.ref(item), False, None
            if ref is not None:
                found.append(Dependency(ref, schedule, reason))
        return found

    def cost(self, node: Node | None) -> float | None:
        """A duration in seconds."""
        value = scalar(node)
        if node is None or value is None or isinstance(value, bool):
            return None
        match = _COST.fullmatch(value) if isinstance(value, str) else None
        seconds = float(value) if isinstance(value, (int, float)) else None
        if match:
            seconds = float(match.group(1)) * _UNITS[match.group(2)]
        if seconds is None or not 0 <= seconds < float("inf"):
            message = f"{value!r} is not a duration"
            hint = "write 1.5s, 20ms, 2min, or a number of seconds"
            self.diagnostics.error("CF109", message, node.span, help=hint)
            return None
        return seconds

    def effect(self, node: MapNode, owner: str, indexed: bool) -> Effect | None:
        """One effect."""
        kinds = [kind for kind in _KINDS if node.key(kind) is not None]
        if len(kinds) != 1:
            if kinds or not node.entries:
                extra = node.key(kinds[1]) if kinds else None
                message = "an effect has exactly one of: " + ", ".join(_KINDS)
                span = extra.span if extra is not None else node.span
                self.diagnostics.error("CF109", message, span)
            return None
        kind = kinds[0]
        key, value, until = node.key(kind), node.get(kind), node.get("until")
        if isinstance(value, MapNode):
            until = value.get("until")
        elif until is not None and kind != "holds":
            until_key = node.key("until")
            message = f"'until' belongs to 'holds'; write {kind}: {{until: STATE}}"
            if kind not in ("starts_threads", "openmp"):
                message = f"{kind!r} is no interval and takes no 'until'"
            self.diagnostics.error("CF109", message, until_key.span if until_key else node.span)
        together = node.key("together")
        if together is not None and kind != "holds":
            self.diagnostics.error("CF109", "'together' belongs to 'holds'", together.span)
        span = key.span if key is not None else node.span
        end = text_node(until)
        return Effect(
            kind,
            text(value),
            own_ref(end, owner, indexed, self.diagnostics) if end is not None else None,
            span,
            together is not None,
        )

    # -- the rest ------------------------------------------------------------

    def param(self, key: ScalarNode, node: Node) -> Param:
        """A parameter."""
        body = node if isinstance(node, MapNode) else MapNode((), node.span)
        for word in ("type", "default"):
            if isinstance(node, MapNode) and node.key(word) is None:
                message = f"params.{key.text}: missing key {word!r}"
                self.diagnostics.error("CF108", message, key.span)
        kind = text(body.get("type"))
        self.programs(key, kind, items(body.get("from")))
        return Param(
            name=key.text,
            type="int" if kind == "int" else "bool" if kind == "bool" else "str",
            default=scalar(body.get("default")),
            sources=tuple(
                self.source(item) for item in items(body.get("from")) if isinstance(item, MapNode)
            ),
            span=key.span,
        )

    def programs(self, key: ScalarNode, kind: str | None, sources: Iterable[Node]) -> None:
        """``program`` says yes or no, at once: for a bool, and no other source comes to speak."""
        maps = [source for source in sources if isinstance(source, MapNode)]
        found = [word for source in maps if (word := source.key("program")) is not None]
        if found and kind not in ("bool", None):
            message = f"'program' is true or false, and {key.text!r} is of type {kind}"
            self.diagnostics.error("CF109", message, found[0].span)
        if found and len(found) < len(maps):
            other = next(source for source in maps if source.key("program") is None)
            message = "'program' is always known: beside it no other source is asked"
            hint = "declare another parameter for it"
            self.diagnostics.error("CF109", message, other.span, help=hint)

    def program(self, node: Node | None) -> tuple[str, ...]:
        """A program's name and its first arguments."""
        words = texts(node)
        if words and (not words[0].text or "/" in words[0].text):
            message = f"{words[0].text!r} is not a program's name"
            hint = "write its base name, as in [vllm, serve]"
            self.diagnostics.error("CF109", message, words[0].span, help=hint)
        return tuple(word.text for word in words)

    def source(self, node: MapNode) -> Source:
        """One run-time source of a parameter."""
        argv, value, at = node.key("argv"), node.key("value"), node.key("at")
        program = node.key("program")
        span = (argv or value or at or program or node).span
        kinds = [word for word in (argv, value, program) if word is not None]
        if len(kinds) != 1:
            message = "a source has one of 'argv', 'program', and 'value' with 'at'"
            self.diagnostics.error("CF109", message, (kinds[1] if kinds else node).span)
        elif program is not None and at is not None:
            message = "'at' belongs to 'value'; how the process was started is known at once"
            self.diagnostics.error("CF109", message, at.span)
        elif argv is not None and at is not None:
            message = "'at' belongs to 'value'; the command line is there from the start"
            self.diagnostics.error("CF109", message, at.span)
        elif value is not None and at is None:
            message = "a source with 'value' needs 'at', the transition at which it is known"
            self.diagnostics.error("CF108", message, value.span)
        for option in texts(node.get("argv")):
            if not re.fullmatch(r"--?[A-Za-z0-9][A-Za-z0-9_.-]*", option.text):
                message = f"{option.text!r} is not an option's name"
                hint = "write it as in --tensor-parallel-size"
                self.diagnostics.error("CF109", message, option.span, help=hint)
        expression = text_node(node.get("value"))
        return Source(
            span=span,
            argv=tuple(option.text for option in texts(node.get("argv"))),
            value=check_expression(expression, self.diagnostics) if expression else None,
            at=self.ref(node.get("at")),
            program=self.program(node.get("program")),
        )

    def chain(self, node: Node | None) -> tuple[tuple[Ref, ...], ...]:
        """The chain: steps of one or several concurrent transitions."""
        steps: list[tuple[Ref, ...]] = []
        broken = False
        for item in node.items if isinstance(node, ListNode) else ():
            step: list[Ref | None] = []
            for part in texts(item):
                step += self.alternatives(part)
            broken = broken or None in step or not step
            steps.append(tuple(ref for ref in step if ref is not None))
        # A chain with a hole would be blamed for what it lacks: check none of it.
        return () if broken else tuple(steps)

    def alternatives(self, node: ScalarNode) -> list[Ref | None]:
        """``a | b`` as references."""
        found: list[Ref | None] = []
        at = 0
        for piece in node.text.split("|"):
            start = at + len(piece) - len(piece.lstrip())
            end = at + len(piece.rstrip())
            found.append(parse_ref(node, self.diagnostics, min(start, end), end))
            at += len(piece) + 1
        return found

    def merges(self, node: Node | None) -> list[MergeGroup]:
        """The merge groups; one with a malformed member is left out."""
        found: list[MergeGroup] = []
        for item in node.items if isinstance(node, ListNode) else ():
            name = text_node(item.get("name")) if isinstance(item, MapNode) else None
            if not isinstance(item, MapNode):
                continue
            refs = [parse_ref(part, self.diagnostics) for part in texts(item.get("of"))]
            if name is not None and refs and None not in refs:
                members = tuple(ref for ref in refs if ref is not None)
                found.append(MergeGroup(name.text, members, name.span))
        return found

    def layouts(self, node: Node | None) -> dict[tuple[str, str], Layout]:
        """The literal relations."""
        found: dict[tuple[str, str], Layout] = {}
        for key, value in entries(node):
            match = _LAYOUT_KEY.fullmatch(key.text)
            if match is None:
                message = f"{key.text!r} is not component.relation"
                self.diagnostics.error("CF110", message, key.span, help="as in chunk.tensors")
                continue
            lists = tuple(
                tuple(n for entry in items(row) if (n := whole(entry)) is not None)
                for row in (value.items if isinstance(value, ListNode) else ())
            )
            component, relation = match.groups()
            found[component, relation] = Layout(component, relation, lists, key.span)
        return found

    def engine(self, root: MapNode) -> Engine | None:
        """The engine."""
        node, key = root.get("engine"), root.key("engine")
        if not isinstance(node, MapNode) or key is None:
            return None
        for word in ("package", "versions"):
            if node.key(word) is None:
                self.diagnostics.error("CF108", f"engine: missing key {word!r}", key.span)
        package = text_node(node.get("package"))
        if package is not None and not package.text.isidentifier():
            message = f"{package.text!r} is not a package's import name"
            self.diagnostics.error("CF109", message, package.span)
        unsupported: list[Unsupported] = []
        for item in items(node.get("unsupported")):
            if isinstance(item, MapNode):
                when = build_condition(item.get("when"), self.diagnostics)
                if when is not None:
                    reason = text(item.get("reason")) or ""
                    unsupported.append(Unsupported(when, reason, when.span))
        versions = build_specifier(node.get("versions"), self.diagnostics)
        return Engine(
            package=package.text if package else "",
            versions=versions or "",
            span=package.span if package else key.span,
            unsupported=tuple(unsupported),
        )
