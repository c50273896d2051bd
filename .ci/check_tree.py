"""What no linter checks: module sizes, machine paths or registry hosts in the tree, and test
modules of one name (pytest imports them by it).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

MAX_LINES = 500
#: Golden cases stand for other people's code.
SIZE_EXEMPT = "tests/cases/"
#: A class of one letter keeps each pattern from matching itself.
MACHINE = re.compile(
    r"(?<![\w.])/(wor[k]|roo[t]|hom[e]/\w+|User[s]/\w+)/"
    r"|/op[t]/(wheels|pypi)|/etc/xd[g]/"
    r"|py[p]i\.org|pythonhoste[d]\.|debia[n]\.org|npmj[s]\."
    r"|-[-](extra-)?index-url|-[-]find-links"
)


def problems(path: str, text: str) -> list[str]:
    """What is wrong with one file."""
    lines = text.splitlines()
    found = []
    if path.endswith(".py") and not path.startswith(SIZE_EXEMPT) and len(lines) > MAX_LINES:
        found.append(f"{path}: {len(lines)} lines, {MAX_LINES} at most")
    for number, line in enumerate(lines, 1):
        match = MACHINE.search(line)
        if match:
            found.append(f"{path}:{number}: names a machine's path or a registry: {match[0]}")
    return found


def main() -> int:
    """Check all files that are or would be committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout
    found: list[str] = []
    tests: dict[str, str] = {}
    for name in sorted(filter(None, listed.decode().split("\0"))):
        path = Path(name)
        if path.is_file() and not path.is_symlink():
            found += problems(name, path.read_text("utf-8", errors="replace"))
            first = tests.setdefault(path.name, name) if path.match("tests/*/*.py") else name
            if first != name and path.name not in ("__init__.py", "conftest.py"):
                found.append(f"{name}: has the name of {first}")
    print("\n".join(found) if found else "sizes and names: all fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
