"""Imports that few functions need."""
from __future__ import annotations

import heavy.things as things
from typing import TYPE_CHECKING

from .third import (
    only_inside,
    other as renamed,
)

if TYPE_CHECKING:
    from heavy.things import Thing


def plain(x: things.Thing) -> Thing:
    return x


def user():
    """It uses one."""
    return [only_inside() for _ in range(3)]


class Server:
    limit = 1

    async def serve(self):
        def inner():
            return renamed(things)

        return inner()

    def generate(self, only_inside=None):
        yield renamed
