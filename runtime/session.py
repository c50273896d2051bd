"""One process's part in one run: its connection to the owner and its trace file."""

from __future__ import annotations

import logging
import time
from typing import Any

from cfac.runtime.client import Client
from cfac.runtime.errors import OwnerLost
from cfac.runtime.run import Run
from cfac.runtime.table import label
from cfac.runtime.trace import QuietTrace, TraceWriter

log = logging.getLogger("cfac")


class Session:
    """Records events and speaks to the owner; a broken trace does not stop publishing.

    ``lost`` is set once the owner is gone: then nothing is published any more, and
    enforced waits must raise.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.client = Client(run.socket_path, run.token)
        self.lost: OwnerLost | None = None
        #: labels of components that have started in this process
        self.started: set[str] = set()
        self._trace = QuietTrace(TraceWriter(run.folder), log.warning)

    def record(self, event: str, t: int | None = None, **fields: Any) -> None:
        """Append an event to the trace; on the first error the trace ends with a log line."""
        self._trace.write(event, t, **fields)

    def post(self, message: dict[str, Any]) -> None:
        """Send a message to the owner; once it is gone, one log line and then silence."""
        if self.lost is not None:
            return
        try:
            self.client.post(message)
        except OwnerLost as error:
            self.lost = error
            if self.client.early:  # it is about to be ended, as the whole run
                return
            log.warning("run %s: %s; nothing is observed from here on", self.run.id, error)

    def early(self, value: bool) -> None:
        """Tell the owner whether this process may still be given up: no engine asked for it yet."""
        self.client.early = value
        self.post({"op": "early", "value": value})

    def wait(self, message: dict[str, Any], timeout: float | None) -> list[Any]:
        """An enforced wait.  ComponentFailed, WaitTimeout or OwnerLost if it cannot end well."""
        if self.lost is not None:
            raise self.lost
        return self.client.ask(message, timeout) or []

    def close(self) -> None:
        """The root goes on to another run: the owner need not stay for this process."""
        self.post({"op": "retire"})
        self.client.close()
        self._trace.close()

    def release(self) -> None:
        """Close; the run's other processes outlive this one, its root."""
        self.post({"op": "release"})
        self.client.close()
        self._trace.close()


class Place:
    """Where an event happens: the session, the component's label and its replica index."""

    def __init__(self, session: Session, name: str, index: int | None) -> None:
        self.session = session
        self.name = name
        self.component, _, self.state = name.partition(".")
        self.index = index
        self.label = label(self.component, index)

    def publish(self, t: int | None = None) -> None:
        """Publish the state here and now, without the hooks' work around it.

        ``t``: when it was reached (CLOCK_MONOTONIC, ns), if that was before now.
        """
        t = time.monotonic_ns() if t is None else t  # before others can hear of it
        self.session.post({"op": "set", "c": self.label, "s": self.state})
        self.record("publish", t)

    def record(self, event: str, t: int | None = None) -> None:
        """Append a begin, wait or publish event to the trace."""
        self.session.record(event, t, c=self.component, i=self.index, s=self.state)
