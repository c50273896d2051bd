"""What starts compute again and again from files or text that rarely change, kept between them.

A plan names two kinds.  ``compiled``: modules that make source text and execute it, as
`dataclasses` does for the methods that it adds; the text is the key.  ``results``: functions
whose results hold as long as the files below their first argument, a path, or below the
folders of `sys.path` are the same (name, size, modification time: what Python asks of a
.pyc, too).  Both are exchanged from the first state of a component to its last, and the
originals are back afterwards.

Each component has a file of its own, for one plan, engine folder and Python, in
``$CFAC_REMEMBER`` or ``$XDG_CACHE_HOME/cfac/remembered``, mode 0700.  It is written at the
component's last state if anything in it is new, whole or not at all; what belongs to another
user, may be written by one, or is damaged is not read.  Code is in it (as in a .pyc).
"""

from __future__ import annotations
import __future__

import builtins
import contextlib
import fnmatch
import functools
import glob
import hashlib
import importlib.util
import marshal
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from cfac.runtime.deferred import during

ENVIRONMENT = "CFAC_REMEMBER"
_DIGEST = 32
_FEATURES = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)

#: what a file holds: kind -> key -> bytes of marshal
_Entries = dict[str, dict[bytes, bytes]]


def folder() -> Path:
    """Where the files are.  OSError where the user has no home."""
    given = os.environ.get(ENVIRONMENT)
    if given:
        return Path(given)
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise FileNotFoundError(f"{error}; {ENVIRONMENT} may name a folder") from error
    return Path(base) / "cfac" / "remembered"


class Remembered:
    """The store of one process; a forked child goes on with what its parent knows."""

    def __init__(self, entries: dict[str, Any], identity: str) -> None:
        """``entries`` are the plan's, ``identity`` tells plan and engine from others."""
        self._compiled: list[str] = entries.get("compiled", [])
        self._results: list[dict[str, Any]] = entries.get("results", [])
        named = f"{identity}\n{sys.version}\n{importlib.util.MAGIC_NUMBER.hex()}"
        self._identity = hashlib.blake2b(named.encode(), digest_size=12).hexdigest()
        self._known: _Entries = {"code": {}, "result": {}}
        self._used: _Entries = {"code": {}, "result": {}}
        self._new = 0
        self._undo: list[Callable[[], None]] = []

    @property
    def counts(self) -> dict[str, int]:
        """How much was looked up, and how much of it was new."""
        return {"used": sum(map(len, self._used.values())), "new": self._new}

    def open(self, component: str) -> None:
        """Read what ``component`` knows, and exchange what is to be remembered."""
        for kind, found in self._read(component).items():
            self._known[kind].update(found)
        self._used, self._new = {"code": {}, "result": {}}, 0
        if self._undo:
            return  # inherited by a fork
        for name in self._compiled:
            self._exchange(name, "exec", lambda _, __: self._execute, missing=True)
        for entry in self._results:
            module, function = entry["function"]
            wrap = functools.partial(self._remembering, entry=entry)
            self._exchange(module, function, wrap)

    def close(self, component: str, *, keep: bool) -> None:
        """The originals are back; what is new is written if ``keep``.  OSError."""
        undo, self._undo = self._undo, []
        for restore in undo:
            restore()
        if keep and self._new:
            self._write(component)

    # -- exchanging -----------------------------------------------------------------

    def _exchange(
        self,
        module: str,
        name: str,
        wrap: Callable[[Any, ModuleType], Any],
        *,
        missing: bool = False,
    ) -> None:
        """Exchange a global of a module, now or when it is imported, until `close`.

        ``missing``: the global shadows a builtin, so the module must not have it.
        """
        open_ = [True]

        def exchange() -> None:
            namespace = vars(sys.modules[module])
            if not open_ or (name in namespace) is missing:
                return
            own = namespace.get(name)
            mine = namespace[name] = wrap(own, sys.modules[module])

            def restore() -> None:
                if namespace.get(name) is mine:
                    namespace.pop(name) if missing else namespace.update({name: own})

            self._undo.append(restore)

        @contextlib.contextmanager
        def imported() -> Iterator[None]:
            if missing:
                exchange()
            yield
            if not missing:
                exchange()

        self._undo.append(open_.clear)
        if module in sys.modules:
            exchange()
        else:
            during(module, imported)

    def _execute(
        self, source: Any, names: Any = None, local: Any = None, /, **options: Any
    ) -> None:
        """``exec``; of text, the code is remembered."""
        caller = sys._getframe(1)
        if names is None:
            names, local = caller.f_globals, caller.f_locals if local is None else local
        if type(source) is str:
            flags = caller.f_code.co_flags & _FEATURES
            source = self._code(source, flags)
        builtins.exec(source, names, local, **options)  # noqa: S102 (what the module asked for)

    def _code(self, source: str, flags: int) -> CodeType:
        key = hashlib.blake2b(b"%d\n" % flags + source.encode(errors="surrogatepass")).digest()
        found = self._look_up("code", key)
        if found is not None:
            remembered: CodeType = _load(found)
            return remembered
        code: CodeType = compile(source, "<string>", "exec", flags, dont_inherit=True)
        self._keep("code", key, marshal.dumps(code))
        return code

    def _remembering(
        self, function: Callable[..., Any], module: ModuleType, *, entry: dict[str, Any]
    ) -> Callable[..., Any]:
        """``function``, with its result remembered while the files are the same."""
        within = threading.local()  # its calls of itself are part of the result

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if getattr(within, "call", False):
                return function(*arguments, **options)
            try:
                key = _key(module, function, arguments, options, entry)
            except (OSError, TypeError, ValueError):  # no path, or nothing to tell it by
                return function(*arguments, **options)
            found = self._look_up("result", key)
            if found is not None:
                return _load(found)
            within.call = True
            try:
                result = function(*arguments, **options)
            finally:
                within.call = False
            with contextlib.suppress(ValueError):  # what marshal cannot write
                self._keep("result", key, marshal.dumps(result))
            return result

        return call

    # -- the store ------------------------------------------------------------------

    def _look_up(self, kind: str, key: bytes) -> bytes | None:
        found = self._known[kind].get(key)
        if found is not None:
            self._used[kind][key] = found
        return found

    def _keep(self, kind: str, key: bytes, value: bytes) -> None:
        self._known[kind][key] = self._used[kind][key] = value
        self._new += 1

    def _path(self, component: str) -> Path:
        return folder() / f"{self._identity}-{component}"

    def _read(self, component: str) -> _Entries:
        """The file's entries; none if there is no such file that can be trusted."""
        try:
            handle = os.open(self._path(component), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return {}
        status = os.fstat(handle)
        if not _own(status) or not stat.S_ISREG(status.st_mode):
            os.close(handle)
            return {}
        with open(handle, "rb") as file:
            digest, content = file.read(_DIGEST), file.read()
        if digest != hashlib.blake2b(content, digest_size=_DIGEST).digest():
            return {}
        entries: _Entries = _load(content)
        return entries

    def _write(self, component: str) -> None:
        """Write what this start used: what it did not need is forgotten."""
        path = self._path(component)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _own(path.parent.stat()):
            raise PermissionError(f"{path.parent} may be written by others")
        content = marshal.dumps(self._used)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with open(handle, "wb") as file:
                file.write(hashlib.blake2b(content, digest_size=_DIGEST).digest())
                file.write(content)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


def _own(status: os.stat_result) -> bool:
    """Whether it is this user's, and no other user may write it."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _load(written: bytes) -> Any:
    """What marshal wrote to a file that only this user can write, and whose digest is right."""
    return marshal.loads(written)  # noqa: S302


def _key(
    module: ModuleType,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    entry: dict[str, Any],
) -> bytes:
    """What a result depends on: the function, its arguments, the files that the entry names.

    Raises TypeError or ValueError where an argument is neither a path nor data.
    """
    plain = [os.fspath(a) if isinstance(a, os.PathLike) else a for a in arguments]
    called = (plain, sorted(options.items()))
    marshal.dumps(called)  # or it is no data, and its text would say nothing
    if entry["below"] == "sys.path":
        found = [(top, list(_on_path(top, entry["files"]))) for top in sys.path]
    else:
        top = plain[0] if plain else None
        if not isinstance(top, str):
            raise TypeError("the first argument is no path")
        top = top if os.path.isdir(top) else os.path.dirname(top)
        found = [(top, sorted(_below(top, entry["files"])))]
    own = (module.__name__, function.__qualname__, _stamp(module.__file__ or ""))
    named = repr((own, called, found))
    return hashlib.blake2b(named.encode(errors="surrogateescape")).digest()


_Stamp = tuple[int, int]


def _stamp(path: str) -> _Stamp | None:
    """Size and modification time, in ns; None where there is nothing."""
    try:
        status = os.stat(path or ".")
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _below(top: str, patterns: list[str]) -> Iterator[tuple[str, _Stamp | None]]:
    """The files below ``top``, at any depth, whose names are meant; OSError."""
    below = [top]
    while below:
        with os.scandir(below.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
                elif any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns):
                    yield entry.path, _stamp(entry.path)


def _on_path(top: str, patterns: list[str]) -> Iterator[tuple[str, _Stamp | None]]:
    """The files ``FOLDER/NAME`` in an entry of sys.path that are meant; an archive itself."""
    if not os.path.isdir(top or "."):
        yield top, _stamp(top)
    for pattern in patterns:
        for name in sorted(glob.glob(pattern, root_dir=top or None)):
            yield name, _stamp(os.path.join(top, name))
