"""Builds the schedule constructs: how a process comes to be, work, and policies.

The shape is already checked; what has the wrong one is left out without a message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cfac.compiler.aliases import build_aliases
from cfac.compiler.bindings import build_site
from cfac.compiler.conditions import build_condition
from cfac.compiler.diagnostics import Diagnostics, Span, did_you_mean
from cfac.compiler.model import (
    BIRTHS,
    Condition,
    Device,
    Effect,
    Policy,
    Process,
    ProcessName,
    Ref,
    Site,
    SiteKind,
    Strategy,
)
from cfac.compiler.nodes import items, text, text_node, texts
from cfac.compiler.recorded import WORD
from cfac.compiler.recordings import MODULE
from cfac.compiler.refs import own_ref, parse_ref
from cfac.compiler.yamlpos import MapNode, Node, ScalarNode

#: What a state can be ``before`` -> the kind of effect that opens it.
INTERVALS = {"openmp": "openmp", "threads": "starts_threads", "device": "initializes"}
#: Devices that the runtime can open.
DEVICES = ("cuda", "xpu")
_DEVICE = re.compile(rf"{MODULE.pattern}:{MODULE.pattern}")


def build_process(body: MapNode, owner: str, diagnostics: Diagnostics) -> Process | None:
    """The ``process`` of a component."""
    node, key = body.get("process"), body.key("process")
    if not isinstance(node, MapNode) or key is None:
        return None
    spawned_by = text_node(node.get("spawned_by"))
    names = _names(node.get("name"), diagnostics)

    def sites(kind: SiteKind) -> tuple[Site, ...]:
        return tuple(
            build_site(kind, site, node, diagnostics)
            for site in items(node.get(kind))
            if isinstance(site, MapNode)
        )

    return Process(
        spawned_by=spawned_by.text if spawned_by else None,
        name=names[0].text if names else None,
        strategy=_strategy(node.get("strategy"), diagnostics),
        span=spawned_by.span if spawned_by else key.span,
        stop=sites("stop"),
        start=sites("start"),
        context=sites("context"),
        names=names,
        aliases=build_aliases(node, owner, diagnostics),
    )


def _names(node: Node | None, diagnostics: Diagnostics) -> tuple[ProcessName, ...]:
    """The process's name; of a list, each holds for some versions of the engine."""
    found: list[ProcessName] = []
    for item in items(node):
        if isinstance(item, MapNode):
            when = build_condition(item.get("when"), diagnostics)
            for test in when.tests if when else ():
                if test.subject != "version":
                    message = "a process's name goes by the engine's version only"
                    hint = 'write when: {version: ">=0.18"}'
                    diagnostics.error("CF109", message, test.span, help=hint)
            name = text_node(item.get("is"))
            if item.key("is") is None:
                message = "the entry does not say what the name is"
                hint = 'write {is: EngineCore, when: {version: ">=0.18"}}'
                diagnostics.error("CF108", message, item.span, help=hint)
        else:
            name, when = text_node(item), None
        if name is not None:
            found.append(ProcessName(name.text, when, name.span))
    return tuple(found)


def _strategy(node: Node | None, diagnostics: Diagnostics) -> Strategy:
    if isinstance(node, MapNode):
        kinds = [kind for kind in BIRTHS if node.get(kind) is not None]
        if len(kinds) != 1:
            if kinds or not node.entries:  # else the unknown key is reported
                message = "a strategy is one of {fork: parent.State} and {prespawn: parent.State}"
                diagnostics.error("CF109", message, node.span)
            return Strategy()
        parent = text_node(node.get(kinds[0]))
        return Strategy(kinds[0], parse_ref(parent, diagnostics) if parent is not None else None)
    word = text_node(node)
    if word is not None and word.text == "prespawn":
        return Strategy("prespawn")
    if word is not None and word.text != "engine":
        hint = "write 'engine' (the default), 'prespawn', {prespawn: parent.State} or "
        hint += "{fork: parent.State}"
        message = f"the strategy {word.text!r} is unknown"
        diagnostics.error("CF109", message, word.span, help=hint)
    return Strategy()


@dataclass(frozen=True)
class Work:
    """What a state's ``does`` or ``idle`` imports, when, and what it waits for meanwhile.

    ``recorded`` is where that word stands among the modules, if it does.
    """

    imports: tuple[str, ...] = ()
    when: Condition | None = None
    idle_while: Ref | None = None
    recorded: Span | None = None


def build_work(options: MapNode, diagnostics: Diagnostics) -> Work:
    """What a state's ``does`` or ``idle`` says; ``device`` aside, see build_device."""
    does, idle = options.get("does"), options.get("idle")
    if isinstance(does, MapNode) and isinstance(idle, MapNode):
        key = options.key("idle")
        message = "a state has either 'does' or 'idle', not both"
        hint = "make two states of it"
        diagnostics.error("CF109", message, key.span if key else idle.span, help=hint)
        return Work()
    work = does if isinstance(does, MapNode) else idle
    if not isinstance(work, MapNode):
        return Work()
    meanwhile = text_node(work.get("while")) if work is idle else None
    modules, condition = work.get("import"), work.key("when")
    if condition is not None and modules is None and work.get("device") is not None:
        message = "this 'when' is about an import, and there is none"
        hint = "a device has its own: device: {kind: ..., when: ...}"
        diagnostics.error("CF109", message, condition.span, help=hint)
    return Work(
        imports=_modules(modules, diagnostics),
        when=build_condition(work.get("when"), diagnostics) if work is does else None,
        idle_while=parse_ref(meanwhile, diagnostics) if meanwhile is not None else None,
        recorded=next((node.span for node in texts(modules) if node.text == WORD), None),
    )


def build_before(node: Node | None, diagnostics: Diagnostics) -> tuple[Effect, ...]:
    """The intervals of its process that a state's ``before`` demands to open later."""
    found: list[Effect] = []
    for word in texts(node):
        if word.text in INTERVALS:
            found.append(Effect("before", word.text, None, word.span))
        else:
            message = f"{word.text!r} is no interval of a process"
            known = ", ".join(INTERVALS)
            hint = did_you_mean(word.text, INTERVALS) or f"write one of {known}"
            diagnostics.error("CF109", message, word.span, help=hint)
    return tuple(found)


def build_device(options: MapNode, diagnostics: Diagnostics) -> Device | None:
    """The device that a state's ``does`` opens."""
    does = options.get("does")
    if not isinstance(does, MapNode):
        return None
    node, key = does.get("device"), does.key("device")
    if key is None:
        if all(name.text == "when" for name, _ in does.entries):
            hint = "write import: and modules, or device: and its kind"
            diagnostics.error("CF108", "'does' says nothing to do", does.span, help=hint)
        return None
    kind = text_node(node.get("kind") if isinstance(node, MapNode) else node)
    if kind is None:
        return None
    if kind.text not in DEVICES and not _DEVICE.fullmatch(kind.text):
        message = f"{kind.text!r} is no kind of device"
        hint = f"write {' or '.join(DEVICES)}, or module:attribute, as in "
        hint += "vllm.platforms:current_platform.device_type"
        diagnostics.error("CF109", message, kind.span, help=hint)
        return None
    when = build_condition(node.get("when"), diagnostics) if isinstance(node, MapNode) else None
    return Device(kind.text, when, key.span)


def _modules(node: Node | None, diagnostics: Diagnostics) -> tuple[str, ...]:
    found = texts(node)
    if node is not None and not found and not isinstance(node, ScalarNode):
        diagnostics.error("CF109", "expected at least one module, found none", node.span)
    for module in found:
        if not MODULE.fullmatch(module.text):
            message = f"{module.text!r} is not a module's name"
            hint = "write it as in vllm.v1.engine.core"
            diagnostics.error("CF109", message, module.span, help=hint)
    return tuple(dict.fromkeys(module.text for module in found))


def build_policy(
    body: MapNode, owner: str, indexed: bool, diagnostics: Diagnostics
) -> Policy | None:
    """The ``policy`` of a component."""
    node, key = body.get("policy"), body.key("policy")
    if not isinstance(node, MapNode) or key is None:
        return None
    end = text_node(node.get("until"))
    until = own_ref(end, owner, indexed, diagnostics) if end is not None else None
    if until is None or text(node.get("gc")) != "frozen":
        return None
    return Policy("frozen", until, key.span, build_condition(node.get("when"), diagnostics))
