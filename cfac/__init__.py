"""cfac: a declarative startup-graph compiler for LLM inference engines.

The folders ``specs``, ``compiler``, ``codegen`` and ``runtime`` are linked here
and imported as ``cfac.specs`` and so on.  Names below load on first use, so that
``import cfac`` costs nothing in an engine's start path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cfac.compiler.api import check, compile_plan, load
    from cfac.compiler.diagnostics import Diagnostic
    from cfac.compiler.model import Spec
    from cfac.runtime.channel import Channel
    from cfac.runtime.errors import ChannelError, ComponentFailed, WaitTimeout

__version__ = "0.1.0"

_HOMES = {
    "Channel": "cfac.runtime.channel",
    "ChannelError": "cfac.runtime.errors",
    "ComponentFailed": "cfac.runtime.errors",
    "Diagnostic": "cfac.compiler.diagnostics",
    "Spec": "cfac.compiler.model",
    "WaitTimeout": "cfac.runtime.errors",
    "check": "cfac.compiler.api",
    "compile_plan": "cfac.compiler.api",
    "load": "cfac.compiler.api",
}

__all__ = [
    "Channel",
    "ChannelError",
    "ComponentFailed",
    "Diagnostic",
    "Spec",
    "WaitTimeout",
    "check",
    "compile_plan",
    "load",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cfac' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
