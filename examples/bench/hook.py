"""What the import hook costs an interpreter: installed and off, on, and with the engine.

``python examples/bench/hook.py --engine build/engine/vllm-0.32.0`` compiles the hook,
installs it into an environment of its own that sees the engine's packages, and measures

- ``python -c pass`` without the hook, with it installed, and with ``CFAC_HOOK=1``,
  interleaved;
- in one process: the comparison of the engine's files with their hashes, and the code of
  all edited modules, from the hook's bytecode, compiled (another Python, ``-O``), and, in
  comparison, as the stock loader takes it from its own bytecode.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cli import site_packages
from stats import medians, table, write_json

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "specs" / "vllm" / "fast-start.yaml"
WITHIN = """
import json, os, sys, time
from importlib.machinery import SourceFileLoader
import {module} as hook
from {module} import edits
import {module}.relocate
folder, root = os.path.dirname(hook.__file__), {root!r}
def timed(work):
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3
found = edits.Edits(folder, root)
places = {{path: found.place(path) for path in found._files}}
stock = [SourceFileLoader(found._files[p]["module"], place) for p, place in places.items()]
print(json.dumps({{
    "compared_ms": timed(lambda: edits.Edits(folder, root)),
    "code_ms": timed(lambda: [found.code(p, place) for p, place in places.items()]),
    "stock_code_ms": timed(lambda: [loader.get_code(loader.name) for loader in stock]),
    "modules": len(places),
}}))
"""


def clean(**extra: str) -> dict[str, str]:
    """The environment, without what would change the measurement."""
    hidden = ("CFAC_", "PYTHON")
    return {k: v for k, v in os.environ.items() if not k.startswith(hidden)} | extra


def milliseconds(python: Path, **extra: str) -> float:
    """Wall time of an interpreter that does nothing."""
    start = time.perf_counter()
    subprocess.run([python, "-c", "pass"], env=clean(**extra), check=True)
    return (time.perf_counter() - start) * 1e3


def within(python: Path, module: str, root: Path, *options: str) -> dict[str, float]:
    program = WITHIN.format(module=module, root=str(root))
    done = subprocess.run(
        [python, *options, "-c", program], env=clean(), check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def environment(engine: Path, folder: Path) -> Path:
    """Make an environment that sees the engine's packages; its Python."""
    python = folder / "bin" / "python"
    command = [engine / "bin" / "python", "-m", "venv", "--without-pip", folder]
    subprocess.run(command, env=clean(), check=True)
    (site_packages(folder) / "engine.pth").write_text(f"{site_packages(engine)}\n")
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("-n", type=int, default=30, help="runs of each")
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="also write the runs and medians here")
    arguments = parser.parse_args()
    engine = arguments.engine.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        command = [sys.executable, "-m", "cfac.compiler.cli", "compile", arguments.spec]
        command += ["--engine", engine, "-o", out, "--backend", "hook"]
        subprocess.run(command, env=clean(PYTHONPATH=str(ROOT)), check=True, capture_output=True)
        (wheel,) = out.glob("*.whl")
        stock, hooked = (environment(engine, out / name) for name in ("stock", "hooked"))
        pip = [hooked, "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "--no-deps", "--no-index", wheel], env=clean(), check=True)
        starts: list[dict[str, float]] = []
        for number in range(arguments.n + 1):
            found = {
                "stock_ms": milliseconds(stock),
                "off_ms": milliseconds(hooked),
                "on_ms": milliseconds(hooked, CFAC_HOOK="1"),
            }
            if number:  # the first round fills caches
                starts.append(found)
        module = wheel.name.partition("-")[0]
        site = site_packages(engine)
        loads = [within(hooked, module, site) for _ in range(arguments.n)]
        compiled = [within(hooked, module, site, "-O") for _ in range(max(3, arguments.n // 10))]
    typical = {"start": medians(starts), "load": medians(loads), "compiled": medians(compiled)}
    write_json(arguments.json, {"starts": starts, "loads": loads, "medians": typical})
    load = typical["load"]
    rows = [["median", "ms"]]
    rows += [[f"python -c pass, {k[:-3]}", f"{v:.2f}"] for k, v in typical["start"].items()]
    rows += [
        [f"files of {load['modules']:.0f} modules compared", f"{load['compared_ms']:.1f}"],
        ["their code, from the hook's bytecode", f"{load['code_ms']:.1f}"],
        ["their code, from the stock bytecode", f"{load['stock_code_ms']:.1f}"],
        ["their code, compiled", f"{typical['compiled']['code_ms']:.1f}"],
    ]
    print(table(rows))


if __name__ == "__main__":
    main()
