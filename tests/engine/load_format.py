"""What the tests of ``--load-format cfac`` share: the plugin as an installation would show it."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from real_engine import ROOT

from cfac.native import binding


def plugin_environment(folder: Path) -> dict[str, str]:
    """Environment variables by which an engine finds this checkout's cfac, and its plugin.

    The entry points are those that pyproject.toml declares, as an installation writes them.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        binding.VARIABLE: binding.library()._name,
    }
