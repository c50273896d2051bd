"""The options of commands that read a model's layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def layout_options(command: _Command) -> _Command:
    """``--model`` and ``--chunk-size``."""
    model = click.option(
        "--model",
        metavar="PATH",
        help="Read the layout of this model: a safetensors file, a folder, or an index.",
    )
    size = click.option(
        "--chunk-size",
        metavar="SIZE",
        help="8MiB, a number of bytes, or auto: chosen from file system, device and memory.",
    )
    return model(size(command))
