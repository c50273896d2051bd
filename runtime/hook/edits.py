"""The edits of an import hook: are these the engine's files, and what is the code of each?

The decision is for all modules at once: half of a plan would wait for states that
nobody publishes.  The bytecode comes with the hook, made by the Python that compiled it;
it is keyed by the hash of the engine's file and by that Python's magic number.  Another
Python (or ``-O``) compiles the edited source at each start.  Nothing is ever written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import marshal
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType
from typing import Any

FORMAT = 1
_SHOWN = 3


class Unfit(ImportError):
    """The hook does not fit this engine; the text says why."""


def say(text: str, *, warning: bool = False) -> None:
    """Log a line, in the process that the engine's start began with."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.current_process().name != "MainProcess":
        return
    if os.environ.get("CFAC_RUN"):  # a helper process of a start that is under way
        return
    log = logging.getLogger("cfac")
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("cfac: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    log.log(logging.WARNING if warning else logging.INFO, "%s", text)


class Edits:
    """The edits of all modules of an engine whose package stands in ``root``.

    Unfit if one of its files is not the one that the hook was compiled for; OSError,
    ValueError or KeyError if the hook's own files are damaged.
    """

    def __init__(self, folder: str, root: str) -> None:
        with open(os.path.join(folder, "hook.json"), encoding="utf-8") as file:
            manifest: dict[str, Any] = json.load(file)
        if manifest["hook"] != FORMAT:
            raise Unfit(f"its format is {manifest['hook']!r}, not {FORMAT}")
        self.root = root
        self._folder = folder
        self.engine = f"{manifest['package']} {manifest['version']}"
        self._files: dict[str, dict[str, Any]] = manifest["files"]
        self._modules = {entry["module"]: path for path, entry in self._files.items()}
        self.say = say
        python = manifest["python"]
        fits = python["magic"] == MAGIC_NUMBER.hex() and sys.flags.optimize == 0
        self._tag = None if fits else str(python["tag"])
        wrong = [why for path in self._files if (why := self._check(path)) is not None]
        if wrong:
            more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            raise Unfit(
                f"not the files it was compiled for ({self.engine}) in {root}: "
                f"{', '.join(wrong[:_SHOWN])}{more}"
            )

    def _check(self, path: str) -> str | None:
        """What is wrong with a file of the engine, if anything is."""
        entry = self._files[path]
        try:
            found = hashlib.sha256(_read(self.place(path))).hexdigest()
        except OSError as error:
            return f"{path} ({error.strerror})"
        if found != entry["before"]:
            return f"{path} ({'is patched' if found == entry['after'] else 'differs'})"
        return None

    def __str__(self) -> str:
        note = f", compiled at each start (bytecode is for {self._tag})" if self._tag else ""
        return f"{len(self._files)} modules of {self.engine}{note}"

    def place(self, path: str) -> str:
        """Where a file of the engine is."""
        return os.path.join(self.root, *path.split("/"))

    def loader(self, name: str, spec: ModuleSpec) -> EditedLoader:
        """The loader of an edited module.  Unfit if it was found elsewhere, or is no source."""
        path = self._modules[name]
        place = self.place(path)
        if type(spec.loader) is not SourceFileLoader:
            raise Unfit(f"its loader is {type(spec.loader).__name__}")
        if spec.origin is None or not os.path.samefile(spec.origin, place):
            raise Unfit(f"it is at {spec.origin}, not at {place}")
        return EditedLoader(name, spec.origin, self, path)

    def code(self, path: str, filename: str) -> CodeType:
        """The code of an edited file, as of the file ``filename``."""
        entry = self._files[path]
        if self._tag is None:
            data = _read(os.path.join(self._folder, entry["code"]))
            if hashlib.sha256(data).hexdigest() == entry["sha256"]:
                return _renamed(marshal.loads(data), filename)  # noqa: S302 (it is the hook's own)
        from .relocate import compile_edited

        raw = _read(filename)
        if hashlib.sha256(raw).hexdigest() != entry["before"]:
            raise Unfit(f"{filename} has changed since it was compared")
        encoding = entry["encoding"]
        splices = [(offset, text.encode(encoding)) for offset, text in entry["splices"]]
        return compile_edited(raw, splices, entry["bom"], encoding, filename)


class EditedLoader(SourceFileLoader):
    """A module from its source file, with the code of the edited source."""

    def __init__(self, name: str, path: str, edits: Edits, file: str) -> None:
        super().__init__(name, path)
        self._edits = edits
        self._file = file

    def get_code(self, fullname: str) -> CodeType | None:
        """The edited code; the stock code if the edited one cannot be had."""
        try:
            return self._edits.code(self._file, self.path)
        except Exception as error:
            say(f"{fullname} is loaded as it is installed: {error!r}", warning=True)
            return super().get_code(fullname)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _renamed(code: CodeType, filename: str) -> CodeType:
    """``code`` and all code in it, with another file name."""
    try:
        from _imp import _fix_co_filename  # type: ignore[attr-defined]
    except ImportError:  # not every Python has what importlib uses itself
        return _replaced(code, filename)
    _fix_co_filename(code, filename)
    return code


def _replaced(code: CodeType, filename: str) -> CodeType:
    constants = tuple(
        _replaced(item, filename) if isinstance(item, CodeType) else item for item in code.co_consts
    )
    return code.replace(co_filename=filename, co_consts=constants)
