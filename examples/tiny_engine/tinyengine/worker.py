"""The worker process."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

from tinyengine import settings


class Worker:
    """Holds a part of the weights."""

    def __init__(self, rank: int, handle: dict[str, Any]) -> None:
        self.rank = rank
        self.scale = handle["scale"]

    def load(self) -> None:
        time.sleep(settings.SLOW)

    def add(self, numbers: list[int]) -> int:
        return self.scale * sum(numbers)


def worker_main(rank: int, handle: dict[str, Any], pipe: Connection) -> None:
    """Load, say READY, then answer until the pipe closes."""
    time.sleep(settings.SLOW)
    worker = Worker(rank, handle)
    worker.load()
    pipe.send("READY")
    try:
        while True:
            pipe.send(worker.add(pipe.recv()))
    except EOFError:
        pass
