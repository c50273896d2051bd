"""What each construct of the fast start brings: its spec, built up construct by construct.

``python examples/bench/ablation.py FOLDER`` writes the specs and prints the command of
``coldstart.py`` that compares them with stock, the paper's way (prespawn) and each other.
"""

from __future__ import annotations

import argparse
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

SPECS = Path(__file__).resolve().parents[2] / "specs" / "vllm"
Spec = dict[str, Any]


def without_remember(spec: Spec) -> Spec:
    del spec["remember"]
    return spec


def without_defer(spec: Spec) -> Spec:
    del spec["defer"]
    return spec


def without_idle(spec: Spec) -> Spec:
    """Without the state that works while its component waits, too: nothing else is done in it."""
    frontend = spec["components"]["frontend"]
    frontend["states"] = [s for s in frontend["states"] if "IdleDone" not in s]
    del spec["bind"]["frontend.IdleDone"]
    return spec


def without_policy(spec: Spec) -> Spec:
    del spec["components"]["frontend"]["policy"]
    return spec


def built_up(spec: Spec) -> dict[str, Spec]:
    """Label -> spec: the fork edges alone, then each with one construct more."""
    idle = without_remember(deepcopy(spec))
    defer = without_idle(deepcopy(idle))
    policy = without_defer(deepcopy(defer))
    fork = without_policy(deepcopy(policy))
    return {"fork": fork, "policy": policy, "defer": defer, "idle": idle, "remember": spec}


def write(folder: Path) -> dict[str, Path]:
    """Write the specs, with what they include and their recording; label -> file."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SPECS / "process-tree.yaml", folder)
    found: dict[str, Path] = {}
    for label, spec in built_up(yaml.safe_load((SPECS / "fast-start.yaml").read_text())).items():
        found[label] = folder / f"{label}.yaml"
        spec["name"] = f"vllm-{label}"
        found[label].write_text(yaml.safe_dump(spec, sort_keys=False))
        shutil.copy(SPECS / "fast-start.imports.json", folder / f"{label}.imports.json")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    specs = {"prespawn": SPECS / "prespawn.yaml", **write(parser.parse_args().folder)}
    sides = " ".join(f"--spec {label}={path}" for label, path in specs.items())
    print(f"python examples/bench/coldstart.py {sides}")


if __name__ == "__main__":
    main()
