"""cfac: a declarative startup-graph compiler for LLM inference engines.

The folders ``specs``, ``compiler``, ``codegen`` and ``runtime`` are linked here
and imported as ``cfac.specs`` and so on.  Names below load on first use, so that
``import cfac`` costs nothing in an engine's start path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cfac.compiler.api import check, compile_plan
    from cfac.compiler.api import load as load_spec
    from cfac.compiler.diagnostics import Diagnostic
    from cfac.compiler.model import Spec
    from cfac.runtime.channel import Channel
    from cfac.runtime.errors import ChannelError, ComponentFailed, WaitTimeout
    from cfac.runtime.loading import HeaderError, Loader, LoadError, load

__version__ = "0.1.0"

_HOMES = {
    "Channel": "cfac.runtime.channel",
    "ChannelError": "cfac.runtime.errors",
    "ComponentFailed": "cfac.runtime.errors",
    "Diagnostic": "cfac.compiler.diagnostics",
    "HeaderError": "cfac.runtime.loading",
    "LoadError": "cfac.runtime.loading",
    "Loader": "cfac.runtime.loading",
    "Spec": "cfac.compiler.model",
    "WaitTimeout": "cfac.runtime.errors",
    "check": "cfac.compiler.api",
    "compile_plan": "cfac.compiler.api",
    "load": "cfac.runtime.loading",
    "load_spec": "cfac.compiler.api:load",
}

__all__ = [
    "Channel",
    "ChannelError",
    "ComponentFailed",
    "Diagnostic",
    "HeaderError",
    "LoadError",
    "Loader",
    "Spec",
    "WaitTimeout",
    "check",
    "compile_plan",
    "load",
    "load_spec",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cfac' has no attribute {name!r}")
    from importlib import import_module

    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
