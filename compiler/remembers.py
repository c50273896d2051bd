"""Builds ``remember``: work whose outcome is kept from one start to the next.

The shape is already checked; what has the wrong one is left out without a message.
"""

from __future__ import annotations

from collections.abc import Iterator

from cfac.compiler.diagnostics import Diagnostics
from cfac.compiler.model import Remember
from cfac.compiler.nodes import items, text_node, texts
from cfac.compiler.recordings import MODULE
from cfac.compiler.yamlpos import MapNode, ScalarNode


def build_remembers(root: MapNode, diagnostics: Diagnostics) -> Iterator[Remember]:
    """The entries of a spec's ``remember``."""
    key = root.key("remember")
    if key is not None and root.get("engine") is None:
        message = "'remember' is about an engine's starts, but the spec names no engine"
        diagnostics.error("CF108", message, key.span, help="engine: {package: NAME, versions: ...}")
        return
    for item in items(root.get("remember")):
        if isinstance(item, MapNode):
            yield from _remember(item, diagnostics)


def _remember(item: MapNode, diagnostics: Diagnostics) -> Iterator[Remember]:
    compiled, result = text_node(item.get("compiled")), text_node(item.get("result"))
    files, below = texts(item.get("files")), text_node(item.get("below"))
    if (compiled is None) == (result is None):
        message = "an entry of 'remember' names one of 'compiled' and 'result'"
        diagnostics.error("CF109", message, item.span)
    elif compiled is not None:
        if not MODULE.fullmatch(compiled.text):
            message, hint = f"{compiled.text!r} is no module", "as in dataclasses"
            diagnostics.error("CF109", message, compiled.span, help=hint)
        elif files or below is not None:
            where = below.span if below is not None else files[0].span
            message = "remembered code depends on its text only"
            diagnostics.error("CF109", message, where, help="leave 'files' and 'below' out")
        else:
            yield Remember("compiled", compiled.text, compiled.span)
    elif result is not None:
        if not MODULE.fullmatch(result.text) or "." not in result.text:
            message, hint = f"{result.text!r} is no function of a module", "as in package.module.f"
            diagnostics.error("CF109", message, result.span, help=hint)
        else:
            yield from _result(result, files, below, diagnostics)


def _result(
    result: ScalarNode,
    files: tuple[ScalarNode, ...],
    below: ScalarNode | None,
    diagnostics: Diagnostics,
) -> Iterator[Remember]:
    on_path = below is not None and below.text == "sys.path"
    if not files:
        message = f"on which files the result of {result.text!r} depends is not said"
        hint = "files: '*.py' names those below the path that it is called with"
        diagnostics.error("CF108", message, result.span, help=hint)
    for file in files:
        if file.text.count("/") != on_path or "**" in file.text:
            message = f"{file.text!r} is " + ("not FOLDER/FILE" if on_path else "no name of files")
            hint = (
                "as in '*.dist-info/*': what is in folders of the folders of sys.path"
                if on_path
                else "as in '*.py': files of that name are found at any depth"
            )
            diagnostics.error("CF109", message, file.span, help=hint)
            return
    if files:
        names = tuple(file.text for file in files)
        yield Remember(
            "result", result.text, result.span, names, "sys.path" if on_path else "argument"
        )
