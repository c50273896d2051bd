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

    def rarely(self, items):
        total = 0
        for item in items:
            if item is None:
                continue
            elif isinstance(item, renamed):
                total += 1
            else:
                try:
                    total += renamed(item)
                except KeyError:
                    pass
        return total

    def in_one_branch(self, items):
        if not items:
            return None
        elif len(items) > 1:
            first = items[0]
            with first:
                def inner(): return renamed(first)
            return inner
        return items
