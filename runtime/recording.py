"""Recording what a start imports, and when: with ``CFAC_RECORD=imports`` only.

A finder that finds nothing stands first on ``sys.meta_path``: it sees every import, in
order, and notes which module's body asked for it.  At each publish of a component, what
its process has imported since the component's last one goes into the trace:

- ``imports``: c, i, s, and ``modules``, a list of ``[name, importer or null]``.  After
  the component's last state ``s`` is null, and an event is written as the next import
  begins: a process that is killed has told all but its very last one.
- ``interpreter``: executable, path (``sys.path``), version (of the engine's package), torch
  (what it was built for)

Only modules that a file was loaded for, under their own name, are recorded.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from types import FrameType, ModuleType

from cfac.runtime.device import torch_build
from cfac.runtime.session import Place, Session

ENVIRONMENT = "CFAC_RECORD"


def wanted() -> bool:
    """Whether this start is asked to record its imports."""
    return "imports" in os.environ.get(ENVIRONMENT, "").split(",")


class Recording:
    """What this process imports; follows forks: a child has what its parent had."""

    def __init__(self, package: str | None) -> None:
        self.package = package
        #: module -> whose body imported it (None: nobody's, or it came before us)
        self._importers: dict[str, str | None] = dict.fromkeys(list(sys.modules))
        #: every search for a module, in order: one that only looks comes before the import
        self._searches = list(self._importers)
        #: what has been told of each component, and from which search on it goes on
        self._told: dict[tuple[Session, str], tuple[set[str], int]] = {}
        self._late: list[Place] = []
        self._last_search = time.monotonic_ns()
        self._writing = False
        sys.meta_path.insert(0, self)
        atexit.register(self._tell_late)
        os.register_at_fork(after_in_child=self._forked)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """See that an import begins; find nothing."""
        if self._late:
            self._tell_late()
        self._last_search = time.monotonic_ns()
        self._importers[name] = _importer()
        self._searches.append(name)

    def published(self, place: Place, last: str) -> None:
        """A component has reached a state, ``last`` being its last one."""
        self._late = [late for late in self._late if late.session is place.session]
        self._tell(place, place.state, time.monotonic_ns())
        if place.state == last:
            version = getattr(sys.modules.get(self.package or ""), "__version__", None)
            place.session.record(
                "interpreter",
                version=version,
                executable=sys.executable,
                path=list(sys.path),
                torch=torch_build(),
            )
            self._late.append(place)

    def _tell_late(self) -> None:
        """What components that are ready have imported before the import that begins now."""
        with contextlib.suppress(Exception):  # the engine imports something: no harm to that
            for place in self._late:
                self._tell(place, None, self._last_search)

    def _tell(self, place: Place, state: str | None, stamp: int) -> None:
        if self._writing:  # writing may import something itself
            return
        self._writing = True
        try:
            told, since = self._told.get((place.session, place.label), (set(), 0))
            end = len(self._searches)
            latest = dict.fromkeys(reversed(self._searches[since:end]))
            names = [name for name in reversed(latest) if name not in told and self._counts(name)]
            self._told[place.session, place.label] = (told.union(names), end)
            if names or state is not None:
                place.session.record(
                    "imports",
                    stamp,
                    c=place.component,
                    i=place.index,
                    s=state,
                    modules=[[name, self._importers[name]] for name in names],
                )
        finally:
            self._writing = False

    def _counts(self, name: str) -> bool:
        """Whether a module was imported from a file, and is neither the program nor cfac's."""
        package = name.partition(".")[0]
        if package in ("cfac", "__main__", "__mp_main__") or name == f"{self.package}._cfac":
            return False
        spec = getattr(sys.modules.get(name), "__spec__", None)
        return spec is not None and bool(spec.has_location) and spec.name == name

    def _forked(self) -> None:
        """In a forked child: it is another component, and has imported all that is here."""
        self._told.clear()
        self._late.clear()
        self._writing = False


def _importer() -> str | None:
    """The module whose body is running and imports something; None at run time."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = frame.f_globals.get("__name__")
            module = sys.modules.get(name) if isinstance(name, str) else None
            if isinstance(module, ModuleType) and _initializing(module):
                return str(name)
        frame = frame.f_back
    return None


def _initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
