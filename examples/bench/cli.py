"""Wall time of the commands people type: ``cfac --help``, ``check``, whole-engine ``compile``.

``python examples/bench/cli.py --engine build/engine/vllm-0.32.0`` runs each command n
times, interleaved after one warming round, and prints medians.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stats import medians, quantile, table, write_json
from tree import cpu_seconds

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "specs" / "vllm" / "process-tree.yaml"


def site_packages(engine: Path) -> Path:
    """An environment's site-packages; any other folder is an engine's tree itself."""
    return next((engine / "lib").glob("python3*/site-packages"), engine)


def run(arguments: list[str]) -> dict[str, float]:
    """Run the command once; its seconds.  Exits with its output if it fails."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(ROOT)
    before, start = cpu_seconds(), time.monotonic()
    command = [sys.executable, "-m", "cfac.compiler.cli", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return {"wall_seconds": seconds, "cpu_seconds": cpu_seconds() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("-n", type=int, default=10, help="runs of each command")
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--engine", type=Path, help="compile for this engine too")
    parser.add_argument("--json", type=Path, help="also write the runs and medians here")
    arguments = parser.parse_args()
    commands = {"cfac --help": ["--help"], "cfac check": ["check", str(arguments.spec)]}
    with tempfile.TemporaryDirectory() as out:
        if arguments.engine:
            site = site_packages(arguments.engine)
            command = ["compile", str(arguments.spec), "--engine", str(site), "-o", out]
            commands["cfac compile"] = command
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for number in range(arguments.n + 1):
            for name, command in commands.items():
                found = run(command)
                if number:  # the first round fills caches
                    rounds[name].append(found)
    middle = {name: medians(found) for name, found in rounds.items()}
    rows = [["command", "wall, median", "p90", "CPU-s"]]
    for name, found in rounds.items():
        slow = quantile([one["wall_seconds"] for one in found], 0.9)
        wall, cpu = middle[name]["wall_seconds"], middle[name]["cpu_seconds"]
        rows.append([name, f"{wall * 1000:.0f} ms", f"{slow * 1000:.0f} ms", f"{cpu:.2f}"])
    print(table(rows))
    write_json(arguments.json, {"n": arguments.n, "medians": middle, "runs": rounds})


if __name__ == "__main__":
    main()
