"""The models of ``refine:`` (docs/tensors.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from cfac.compiler.schema_base import ABSENT, Name, Strict
from cfac.compiler.schema_base import by_shape as _by_shape


class LayoutSourceModel(Strict):
    """Where a layout comes from."""

    safetensors: str = Field(
        description="A file, a folder or an index, relative to the spec: read at compile time."
    )


_Two = Annotated[list[Name], Field(min_length=2, max_length=2)]


class RefineModel(Strict):
    """A component of tensors, to be loaded in chunks: split, merged and renamed."""

    layout: Annotated[
        Annotated[str, Field(json_schema_extra={"enum": ["safetensors"]}), Tag("<text>")]
        | Annotated[LayoutSourceModel, Tag("<mapping>")],
        _by_shape("'safetensors', or {safetensors: PATH}"),
    ] = Field(default=ABSENT, description="'safetensors': the loaded files' headers. Required.")
    chunk: list[Name] = Field(
        default=ABSENT,
        min_length=3,
        description="The chunk's states: those of the component in order, more after them, and "
        "at last the one in which its buffer is free. Required.",
    )
    piece: _Two = Field(
        default=ABSENT, description="The states of a piece; default [Alloc, Copied]."
    )
    states: _Two = Field(
        default=ABSENT,
        description="The component's; the second stands for its last. Default [Alloc, Loaded].",
    )
    ring: int = Field(default=ABSENT, ge=1, description="The most buffers; default 16.")
    depth: int = Field(
        default=ABSENT, ge=1, description="Chunks under way in one stage at a time; default 1."
    )
    release: Literal["pieces", "tensors"] = Field(
        default=ABSENT,
        description="What frees a buffer: its 'pieces' are copied out (the default), or the "
        "'tensors' that lie in it are loaded, as in the paper.",
    )
    chunk_size: Annotated[
        Annotated[int, Field(ge=1), Tag("<number>")] | Annotated[str, Tag("<text>")],
        _by_shape("bytes, a size such as 8MiB, or 'auto'"),
    ] = Field(default=ABSENT, description="8MiB, bytes, or 'auto' (the default).")
