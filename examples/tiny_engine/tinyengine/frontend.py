"""The frontend: what a user talks to.

``python -m tinyengine.frontend --workers 2`` answers numbers on standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import wait

from tinyengine import settings
from tinyengine.core import core_main


@dataclass
class Config:
    workers: int = 1
    scale: int = 1
    experimental: bool = False


def create_config(workers: int, scale: int = 1, experimental: bool = False) -> Config:
    """Check the options and make the config."""
    if workers < 1:
        raise ValueError("there must be at least one worker")
    config = Config(workers, scale, experimental)
    time.sleep(settings.SLOW)
    return config


class Engine:
    """Starts the core; ``add`` answers, ``close`` ends it."""

    def __init__(self, workers: int = 1, scale: int = 1, experimental: bool = False) -> None:
        config = create_config(workers, scale, experimental)
        context = multiprocessing.get_context(settings.START_METHOD)
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=core_main, args=(config, there), name="TinyCore")
        self.process.start()
        there.close()
        self._wait_for_core()
        self.ready = True

    def _wait_for_core(self) -> None:
        if self._receive() != "READY":
            raise RuntimeError("the core did not get ready")

    def _receive(self) -> object:
        if self.pipe not in wait([self.pipe, self.process.sentinel]):
            raise RuntimeError("the core process died")
        try:
            return self.pipe.recv()
        except EOFError:
            raise RuntimeError("the core process died") from None

    def add(self, numbers: list[int]) -> int:
        self.pipe.send(numbers)
        return self._receive()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.process.join()
        self.pipe.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--experimental", action="store_true")
    arguments = parser.parse_args()
    engine = Engine(arguments.workers, experimental=arguments.experimental)
    print("serving", flush=True)
    for line in sys.stdin:
        print(engine.add([int(word) for word in line.split()]), flush=True)
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
