"""One switch: the new model starts while the old one serves (paper, section 4.3, Figure 6).

    T                      T + max(t1' - t2', 0)
    |-- new: Start --------------------- EnvReady ===== Active
    |-- old: Active -------------| told ---- GMemFreed - Destroyed

A switch is a run of its own (specs/vllm/model-switching.yaml), with this process as its
root.  The new engine joins it through ``CFAC_SWITCH_RUN`` and waits in it for ``old.*.GMemFreed``;
the old one's states are published here, when all of its processes are gone.

*Told* is the point of no return: until SIGTERM is sent, a new model that fails costs
nothing, and the old one goes on.  After it, the old one is started again.  Whatever happens,
of the new engine's processes either all live or none.

Without a plan (``plan=None``: the new engine is not patched) nothing keeps the new model
from taking memory too early, so it is started only when the old one's is free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cfac.runtime.errors import ChannelError, ComponentFailed
from cfac.runtime.run import SWITCH, Run, create_run
from cfac.runtime.session import Place, Session
from cfac.runtime.switching.engines import Engine, Server
from cfac.runtime.switching.predict import Prediction, Record, SwitchHistory, predict

#: How often a starting server is looked at, seconds.
_PAUSE = 0.1


class SwitchFailed(ChannelError):
    """The new model does not serve; the message says why, and what became of the old one."""


class Door(Protocol):
    """What a switch needs of who hands requests out."""

    def close(self) -> None:
        """Take no more requests for the old model."""

    def reopen(self) -> None:
        """Take them again."""

    async def drained(self, within: float) -> bool:
        """Whether the old model's last request ends within so many seconds."""

    async def healthy(self, url: str) -> bool:
        """Whether a server answers."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits in seconds; ranks: worker processes of each engine (tensor times pipeline).

    Without ``overlap`` the old model is stopped first, then the new one started.
    """

    drain: float = 60.0
    stop: float = 60.0
    start: float = 1800.0
    restart_old: bool = True
    overlap: bool = True
    old_ranks: int = 1
    new_ranks: int = 1


class Switch:
    """From ``old`` (None: nothing is served) to ``new``.  ``tell`` gets (event, facts)."""

    def __init__(
        self,
        old: Engine | None,
        new: Server,
        door: Door,
        *,
        plan: dict[str, Any] | None,
        history: SwitchHistory,
        log: Callable[[Server], str],
        settings: Settings,
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.old, self.server, self.door = old, new, door
        self.plan = plan if settings.overlap else None
        self.history, self.log, self.settings = history, log, settings
        self._tell = tell
        self.told = False
        #: it has failed, and is about the old model again
        self.undone = False
        self.engine: Engine | None = None
        self.session: Session | None = None
        self.run: Run | None = None
        self._zero = time.monotonic()
        #: how long the old model is expected to take from the drain's begin, seconds
        self.freeing = 0.0

    def tell(self, event: str, **facts: Any) -> None:
        """Say, and record in the trace, what happened; ``at``: seconds since T."""
        at = time.monotonic() - self._zero
        self._tell(event, {"at": round(at, 3), **facts})
        if self.session is not None:
            text = " ".join([event, *(f"{key}={value}" for key, value in facts.items())])
            self.session.record("note", text=text)

    async def perform(self) -> Engine:
        """The engine that serves the new model.

        SwitchFailed where there is none.  Cancelled before the old model is told to stop, it
        leaves that one as it was; afterwards it cannot be cancelled (shield it).
        """
        prediction = self._predict()
        self.freeing = prediction.t2.seconds
        self._zero = time.monotonic()
        try:
            if self.plan is not None:
                self._begin_run(self.plan)
            self.tell("begin", old=self.old.server.model if self.old else None,
                      new=self.server.model, run=self.run.id if self.run else None,
                      clock=round(self._zero, 3))  # fmt: skip
            if self.plan is None:
                await self._retire_old()
                self._start_new()
            else:
                self._start_new()
                await self._overlap(prediction)
            await self._until_healthy(self.engine)
            self.tell("active", model=self.server.model)
            assert self.engine is not None
            return self.engine
        except asyncio.CancelledError:
            await self._undo("the switch was given up")
            raise
        except ChannelError as error:
            raise SwitchFailed(await self._undo(str(error))) from error
        finally:
            if self.session is not None:
                self.session.release()

    # -- steps --------------------------------------------------------------------

    def _predict(self) -> Prediction:
        old = self.old.server.model if self.old else ""
        return predict(self.history.read(), old, self.server.model)

    def _begin_run(self, plan: dict[str, Any]) -> None:
        settings = self.settings
        self.run = create_run(plan)
        self.session = Session(self.run)
        ranks = settings.old_ranks if self.old else 0
        values = {"role": "new", "old_ranks": ranks, "new_ranks": settings.new_ranks}
        self.run.tell_params(values)
        self.session.post({"op": "params", "values": values})
        Place(self.session, "controller.Start", None).publish()
        for state in ("Start", "Active"):
            self._publish_old(state)

    def _publish_old(self, state: str) -> None:
        """Rank 0 last: an engine that takes ``old_ranks`` for its default waits for that one."""
        if self.session is None or self.old is None:
            return
        for rank in reversed(range(self.settings.old_ranks)):
            Place(self.session, f"old.{state}", rank).publish()

    def _start_new(self) -> None:
        environment = {SWITCH: self.run.environment()} if self.run else {}
        self.engine = Engine.start(self.server, self.log(self.server), environment)
        self.tell("started", model=self.server.model, pid=self.engine.pid)

    async def _overlap(self, prediction: Prediction) -> None:
        """Stop the old model at max{T + t1' - t2', T}, or when the new one waits for it."""
        ready = asyncio.create_task(self._env_ready())
        try:
            if self.old is None:
                await ready
                return
            self.tell(
                "predicted",
                t1=prediction.t1.seconds, t1_source=prediction.t1.source,
                t1_records=prediction.t1.records,
                t2=prediction.t2.seconds, t2_source=prediction.t2.source,
                t2_records=prediction.t2.records,
                delay=prediction.delay,
            )  # fmt: skip
            left = self._zero + prediction.delay - time.monotonic()
            done, _ = await asyncio.wait({ready}, timeout=max(0.0, left))
            if done:
                ready.result()  # it waits, or it failed
            t2 = await self._retire_old(ready)
            t1 = await ready
        finally:
            ready.cancel()
        self._record(prediction, t1, t2)

    def _record(self, prediction: Prediction, t1: float, t2: float) -> None:
        assert self.old is not None
        record = Record(
            self.old.server.model, self.server.model, t1, t2,
            prediction.t1.seconds, prediction.t2.seconds,
        )  # fmt: skip
        self.tell("prediction", t1=round(t1, 3), t1_error=round(t1 - record.predicted_t1, 3),
                  t2=round(t2, 3), t2_error=round(t2 - record.predicted_t2, 3),
                  waited=round(record.waited, 3), early=round(record.early, 3))  # fmt: skip
        try:
            self.history.append(record)
        except OSError as error:  # the switch is worth more than its record
            self.tell("history", error=str(error))

    async def _env_ready(self) -> float:
        """When all ranks of the new model have their environment, seconds after T."""
        assert self.session is not None and self.engine is not None
        needs = [[f"new[{rank}]", "EnvReady"] for rank in range(self.settings.new_ranks)]
        message = {"op": "wait", "who": "controller", "needs": needs}
        asking = asyncio.create_task(self.session.client.ask_async(message, self.settings.start))
        try:
            while not asking.done():
                self._check_alive(self.engine)
                if await self.door.healthy(self.server.url) and not asking.done():
                    raise ChannelError(
                        f"{self.server.model} serves, and never waited for memory: "
                        "is its engine patched with specs/vllm/model-switching.yaml?"
                    )
                await asyncio.wait({asking}, timeout=_PAUSE)
            await asking
        except ComponentFailed as error:
            log = self.log(self.server)
            raise ChannelError(f"{self.server.model}: {error.cause} (see {log})") from error
        finally:
            asking.cancel()
        seconds = time.monotonic() - self._zero
        self.tell("env_ready", model=self.server.model)
        return seconds

    async def _retire_old(self, ready: asyncio.Task[float] | None = None) -> float:
        """Drain, stop and free the old model; returns how long that took, seconds."""
        if self.old is None:
            return 0.0
        began = time.monotonic()
        self.door.close()
        self.tell("closed", model=self.old.server.model)
        drained = await self.door.drained(self.settings.drain)
        self.tell("drained", model=self.old.server.model, whole=drained)
        if ready is not None and ready.done():
            ready.result()  # the last moment to keep the old model
        self.told = True
        self.tell("told", model=self.old.server.model)
        polite = await self.old.stop(self.settings.stop)
        seconds = time.monotonic() - began
        for state in ("GMemFreed", "Destroyed"):
            self._publish_old(state)
        self.tell("freed", model=self.old.server.model, killed=not polite)
        return seconds

    async def _until_healthy(self, engine: Engine | None) -> None:
        assert engine is not None
        limit = time.monotonic() + self.settings.start
        while not await self.door.healthy(engine.server.url):
            self._check_alive(engine)
            if time.monotonic() > limit:
                seconds = f"{self.settings.start:.0f} s"
                raise ChannelError(f"{engine.server.model} does not answer after {seconds}")
            await asyncio.sleep(_PAUSE)
        self._check_alive(engine)  # or somebody else answers there

    def _check_alive(self, engine: Engine) -> None:
        """ChannelError if a server has ended."""
        code = engine.exit_code()
        if code is not None:
            log = self.log(engine.server)
            raise ChannelError(f"{engine.server.model} ended with exit code {code} (see {log})")

    # -- when it goes wrong ----------------------------------------------------------

    async def _undo(self, reason: str) -> str:
        """End the new engine, see to the old one; returns what to tell the caller."""
        self.undone = True
        if self.engine is not None:
            self.engine.kill()
            await self.engine.gone(self.settings.stop)
            self.engine = None
        self.tell("failed", model=self.server.model, reason=reason)
        if self.old is None:
            return reason
        old = self.old.server
        if not self.told:
            self.door.reopen()
            self.tell("kept", model=old.model)
            return f"{reason}; {old.model} goes on serving"
        if not self.settings.restart_old or not old.command:
            self.old = None
            why = "asked not to" if old.command else "its command is not known"
            return f"{reason}; {old.model} is stopped and not started again ({why})"
        try:
            self.old = Engine.start(old, self.log(old))
            self.tell("restarted", model=old.model, pid=self.old.pid)
            await self._until_healthy(self.old)
        except ChannelError as error:
            self.old = None
            return f"{reason}; {old.model} was started again and failed too: {error}"
        self.door.reopen()
        return f"{reason}; {old.model} was started again"
