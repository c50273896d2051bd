"""The meta-path finder of an import hook: what an interpreter with the hook on loads first.

Called from the hook's ``.pth`` file in every interpreter of the environment, so it imports
nothing and opens nothing until the engine is imported.  It answers for the edited modules,
the generated ``ENGINE._cfac``, and, with an engine, cfac's runtime where none is installed.
Every module is first looked up as without the hook, so editable installs and other hooks
are followed.

Nothing here raises into the import system: what goes wrong costs one log line, and the
engine starts as stock.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own: importing it takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from .edits import Edits


def install(name: str, package: str, modules: Collection[str], folder: str) -> None:
    """Put the hook ``name`` for the engine ``package`` in place, if it is the one asked for.

    ``modules`` are the edited ones, ``folder`` is the hook's own.  ``CFAC_HOOK`` is ``1``,
    or names of hooks with commas; the ``.pth`` file has seen that it is not empty.
    """
    wanted = os.environ.get("CFAC_HOOK", "").replace(" ", "").split(",")
    if "1" not in wanted and name not in wanted:
        return
    for other in sys.meta_path:
        if getattr(other, "cfac_hook", name) != name and other.package == package:  # type: ignore[attr-defined]
            other.clash(name)  # type: ignore[attr-defined]
            return
    sys.meta_path.insert(0, Finder(name, package, modules, folder))


class Finder:
    """Finds the engine's edited modules; everything else is somebody else's."""

    def __init__(self, name: str, package: str, modules: Collection[str], folder: str) -> None:
        self.cfac_hook = name
        self.package = package
        self.folder = folder
        self._generated = f"{package}._cfac"
        self._names = frozenset([*modules, self._generated, "cfac"])
        #: None until the engine is imported
        self._edits: Edits | None = None
        self._off = False
        #: a module has been given its edits: it is too late to turn the hook off
        self._begun = False
        self._reason: str | None = None
        #: (thread, module): the others are being asked for it
        self._asking: set[tuple[int, str]] = set()
        #: those of them that another hook has asked us for meanwhile
        self._given: set[tuple[int, str]] = set()

    def clash(self, other: str) -> None:
        """Another hook of the same engine is asked for, too: neither is used."""
        self._reason = (
            f"the hooks {self.cfac_hook} and {other} are both for {self.package}: "
            "name one of them in CFAC_HOOK"
        )

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of ours; None for all others."""
        if name not in self._names or self._off:
            return None
        from _thread import get_ident

        key = get_ident(), name
        if key in self._asking:  # by another hook, which wraps what it is given
            self._given.add(key)
            return self._ours(name, self._theirs(name, path, target))
        self._asking.add(key)
        try:
            spec = self._theirs(name, path, target)
            given = key in self._given
        finally:
            self._asking.discard(key)
            self._given.discard(key)
        return spec if given and spec is not None else self._ours(name, spec)

    def _theirs(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """What is found without this hook."""
        for finder in list(sys.meta_path):
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None
            if find is not None and finder is not self:
                spec = find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _ours(self, name: str, spec: ModuleSpec | None) -> ModuleSpec | None:
        """The edited module instead of the one that was found."""
        try:
            if name == "cfac":  # an installed one comes first, but a mere folder is none
                needed = self._edits is not None or "CFAC_RUN" in os.environ
                installed = spec is not None and spec.origin is not None
                return self._bundled(name, "lib") if needed and not installed else spec
            if self._edits is None:
                self._edits = self._decide(name, spec)
            if self._edits is None:
                return spec
            if name == self._generated:
                self._edits.say(f"hook {self.cfac_hook} is active: {self._edits}")
                return self._bundled(name, "")
            if spec is not None:
                spec.loader = self._edits.loader(name, spec)
                self._begun = True
        except Exception as error:
            self._fail(f"{name}: {error}")
        return spec

    def _fail(self, reason: str) -> None:
        """Turn the hook off, with one line; if it is too late for that, only say so."""
        line = f"hook {self.cfac_hook} is off, the engine starts as stock: {reason}"
        if self._begun:
            line = f"hook {self.cfac_hook} is not applied to all of the engine: {reason}"
        else:
            self._off = True
        try:
            from .edits import say

            say(line, warning=True)
        except Exception:
            print(f"cfac: {line}", file=sys.stderr)

    def _decide(self, name: str, spec: ModuleSpec | None) -> Edits | None:
        """When the engine is imported: all of the edits, or none for good."""
        try:
            if self._reason is not None:
                raise ImportError(self._reason)
            if name == self.package:
                found = [os.path.dirname(spec.origin)] if spec and spec.origin else []
            else:
                found = list(sys.modules[self.package].__path__)
            if not found:
                raise ImportError(f"{self.package} is not imported from a folder")
            from .edits import Edits

            return Edits(self.folder, os.path.dirname(os.path.abspath(found[0])))
        except ImportError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
        return None

    def _bundled(self, name: str, folder: str) -> ModuleSpec | None:
        """A package that the hook brings along."""
        from importlib.util import spec_from_file_location

        place = os.path.join(self.folder, folder, name.rpartition(".")[2])
        return spec_from_file_location(
            name, os.path.join(place, "__init__.py"), submodule_search_locations=[place]
        )
