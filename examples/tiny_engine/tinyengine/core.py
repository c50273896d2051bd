"""The core process: owns the workers."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection, wait
from typing import Any

from tinyengine import settings
from tinyengine.worker import worker_main


class WorkersDiedError(RuntimeError):
    pass


class Core:
    """Starts the workers and spreads requests over them."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        handle = self._export_handle()
        context = multiprocessing.get_context(settings.START_METHOD)
        for rank in range(config.workers):
            here, there = context.Pipe()
            process = context.Process(
                target=worker_main, args=(rank, handle, there), name=f"TinyWorker-{rank}"
            )
            process.daemon = True
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
        self._wait_for_ready()

    def _export_handle(self) -> dict[str, Any]:
        return {"scale": self.config.scale}

    def _wait_for_ready(self) -> None:
        for pipe in self.pipes:
            if _receive(pipe, self.processes) != "READY":
                raise WorkersDiedError("a worker did not get ready")

    def add(self, numbers: list[int]) -> int:
        count = len(self.pipes)
        for rank, pipe in enumerate(self.pipes):
            pipe.send(numbers[rank::count])
        return sum(_receive(pipe, self.processes) for pipe in self.pipes)


def _receive(pipe: Connection, processes: list[Any]) -> Any:
    """The next message; an error if a worker dies meanwhile."""
    sentinels = [process.sentinel for process in processes]
    ready = wait([pipe, *sentinels])
    if pipe in ready:
        try:
            return pipe.recv()
        except EOFError:
            pass
    raise WorkersDiedError("a worker process died")


def core_main(config: Any, pipe: Connection) -> None:
    """Start, say READY, then answer until told to stop, or a worker dies."""
    time.sleep(settings.SLOW)
    core = Core(config)
    pipe.send("READY")
    while True:
        ready = wait([pipe, *(process.sentinel for process in core.processes)])
        if pipe not in ready:
            raise WorkersDiedError("a worker process died")
        try:
            numbers = pipe.recv()
        except EOFError:
            return
        if numbers is None:
            return
        pipe.send(core.add(numbers))
