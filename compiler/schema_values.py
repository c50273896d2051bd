"""What many parts of the input language are made of: references, texts, conditions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Tag

from cfac.compiler.refs import REF_PATTERN
from cfac.compiler.schema_base import ABSENT, Name, Strict
from cfac.compiler.schema_base import by_shape as _by_shape

RefText = Annotated[
    str,
    Field(
        description="A reference: core.Ready, worker.*.Ready, worker[i-1].Ready, worker[0].Ready "
        "or chunk[self.relation].Ready.",
        json_schema_extra={"pattern": REF_PATTERN},
    ),
]
Text = Annotated[str, Tag("<text>")]
TextList = Annotated[list[str], Tag("<list>")]
Texts = Annotated[Text | TextList, _by_shape("text, or a list of texts")]
ScalarValue = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[int | float, Tag("<number>")]
    | Annotated[bool, Tag("<boolean>")]
    | Annotated[None, Tag("<nothing>")],
    _by_shape("text, a number or a boolean"),
]


class WhenModel(Strict):
    """A condition on a parameter, the engine version or the platform; all parts must hold."""

    param: Name = Field(default=ABSENT, description="The parameter to test.")
    version: str = Field(
        default=ABSENT, description="Version specifier the engine must match, as in '>=0.32'."
    )
    platform: Texts = Field(default=ABSENT, description="Platform name, or a list of them.")
    is_: ScalarValue = Field(default=ABSENT, alias="is", description="The value it must have.")
    not_: ScalarValue = Field(default=ABSENT, alias="not", description="A value it must not have.")
    in_: list[ScalarValue] = Field(default=ABSENT, alias="in", description="One of these values.")
    above: int | float = Field(default=ABSENT, description="It must be greater than this.")
    below: int | float = Field(default=ABSENT, description="It must be less than this.")
    matches: str = Field(default=ABSENT, description="A regular expression for the whole value.")


When = Annotated[
    Annotated[WhenModel, Tag("<mapping>")] | Annotated[list[WhenModel], Tag("<list>")],
    _by_shape("a condition such as {param: executor, is: mp}"),
]
