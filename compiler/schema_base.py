"""What the models of the input language are made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field

from cfac.compiler.refs import NAME_PATTERN

#: The default of optional keys; typed so that no field has to admit an explicit null.
ABSENT: Any = None


def _shape(value: Any) -> str:
    """The tag by which unions choose: the kind of YAML node.

    The angle brackets keep tags apart from keys in error locations.
    """
    if isinstance(value, str):
        return "<text>"
    if isinstance(value, dict):
        return "<mapping>"
    if isinstance(value, list):
        return "<list>"
    if isinstance(value, bool):
        return "<boolean>"
    if isinstance(value, (int, float)):
        return "<number>"
    return "<nothing>"


def by_shape(expected: str) -> Discriminator:
    """A union that says what it expects."""
    return Discriminator(
        _shape, custom_error_type="shape", custom_error_message=f"expected {expected}"
    )


class Strict(BaseModel):
    """Unknown keys are errors, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_by_name=False)


Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
