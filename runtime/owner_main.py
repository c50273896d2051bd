"""Entry point of the owner process: ``python -I -S owner_main.py FD ID FOLDER ROOT``.

Forks once, so that the owner is nobody's child in the engine, and imports nothing
but the runtime folder beside this file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types


def main() -> None:
    """Become the owner of a run and serve until the run is over."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")  # nothing of the engine's is held: neither its folder nor its descriptors
    descriptor, run_id, folder, root = sys.argv[1:5]
    _close_all_but({0, 1, 2, int(descriptor)})
    here = os.path.dirname(os.path.abspath(__file__))
    for name, path in (("cfac", []), ("cfac.runtime", [here])):
        package = types.ModuleType(name)
        package.__path__ = path
        sys.modules[name] = package
    from cfac.runtime.owner import serve

    serve(int(descriptor), run_id, os.environ["CFAC_OWNER_TOKEN"], folder, int(root))


def _close_all_but(kept: set[int]) -> None:
    """Close inherited descriptors: locks and pipes that others wait to see closed."""
    try:
        opened = {int(name) for name in os.listdir("/proc/self/fd")}
    except OSError:
        opened = set(range(1024))
    for descriptor in opened - kept:
        with contextlib.suppress(OSError):
            os.close(descriptor)


if __name__ == "__main__":
    main()
