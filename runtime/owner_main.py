"""Entry point of the owner process: ``python -I -S owner_main.py FD ID FOLDER ROOT``.

Forks once, so that the owner is nobody's child in the engine, and imports nothing
but the runtime folder beside this file.
"""

from __future__ import annotations

import os
import sys
import types


def main() -> None:
    """Become the owner of a run and serve until the run is over."""
    if os.fork():
        os._exit(0)
    here = os.path.dirname(os.path.abspath(__file__))
    for name, path in (("cfac", []), ("cfac.runtime", [here])):
        package = types.ModuleType(name)
        package.__path__ = path
        sys.modules[name] = package
    from cfac.runtime.owner import serve

    descriptor, run_id, folder, root = sys.argv[1:5]
    serve(int(descriptor), run_id, os.environ["CFAC_OWNER_TOKEN"], folder, int(root))


if __name__ == "__main__":
    main()
