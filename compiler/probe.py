"""Run in an engine's interpreter, as ``python -c``: import modules one by one, in order.

Reads ``{"path": sys.path, "modules": [...]}`` from standard input and answers on
standard output with JSON: ``there`` (what every interpreter has imported when it
starts, and cfac's runtime with it), ``failed`` (what cannot be imported that way, and
why), ``threads`` (what starts a Python thread that goes on when it is imported: then the
process would not be forked).  Standard library only.
"""

import sys

_THERE = list(sys.modules)  # before this file imports anything

import contextlib  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import threading  # noqa: E402
from collections.abc import Iterable, Iterator  # noqa: E402
from types import FrameType  # noqa: E402

#: How long a thread may take to end once its module is imported, seconds.
_GRACE = 1.0


def attempt(modules: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Import each; what failed, and what left threads running (with all that imported it)."""
    failed: dict[str, str] = {}
    threads: dict[str, None] = {}
    begun: list[tuple[threading.Thread, list[str]]] = []
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        begun.append((thread, list(_importing(sys._getframe(1)))))
        start(thread)

    setattr(threading.Thread, "start", started)  # noqa: B010
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit, too
                failed[name] = f"{type(error).__name__}: {error}"
            for thread, importing in begun:
                thread.join(_GRACE)
                if thread.is_alive():
                    threads.update(dict.fromkeys(importing))
            begun.clear()
    finally:
        setattr(threading.Thread, "start", start)  # noqa: B010
    return failed, list(threads)


def _always() -> list[str]:
    """What every interpreter has imported that cfac's runtime is at work in."""
    try:
        importlib.import_module("cfac.runtime.boot")  # imports all that is imported above, too
    except ImportError:
        return _THERE
    return list(sys.modules)


def _importing(frame: FrameType | None) -> Iterator[str]:
    """The modules whose bodies are running."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = frame.f_globals.get("__name__")
            spec = getattr(sys.modules.get(str(name)), "__spec__", None)
            if getattr(spec, "_initializing", False):
                yield str(name)
        frame = frame.f_back


def main() -> None:
    """Answer one request; ends at once, whatever the modules have started."""
    job = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)  # what the modules print is no answer
    sys.path[:] = job["path"]
    there = _always()
    failed, threads = attempt(job["modules"])
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        json.dump({"there": there, "failed": failed, "threads": threads}, out)
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
