import typing
from typing import overload


@overload
def run(x: int) -> int: ...
@typing.overload
def run(x: str) -> str: ...
def run(x):
    global state
    state = x
    return x
