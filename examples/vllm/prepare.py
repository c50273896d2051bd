"""An engine's patched copy, made as a user would: cfac installed, compile, apply.

Shared by the demo and the benchmarks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from server import copy_package, site_packages

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "specs" / "vllm" / "process-tree.yaml"


class CommandFailed(Exception):
    """A command ended with another exit code than 0; the message has its output."""


def run(command: list[str | Path], **environment: str) -> str:
    """Run a command; its standard output.  CommandFailed if it fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
    )
    if done.returncode:
        line = " ".join(str(word) for word in command)
        output = (done.stdout + done.stderr).strip()
        raise CommandFailed(f"{line}\nended with exit code {done.returncode}:\n{output}")
    return done.stdout


def cfac(*arguments: str | Path, **environment: str) -> str:
    """Run the real ``cfac`` command; its standard output."""
    return run([sys.executable, "-m", "cfac.compiler.cli", *arguments], **environment)


def install_cfac(folder: Path) -> Path:
    """Install this checkout's cfac, as a wheel, into a folder for PYTHONPATH."""
    shutil.rmtree(folder, ignore_errors=True)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps"]
    run([*pip, "--no-build-isolation", "--target", folder, ROOT])
    return folder


def patched_copy(engine: Path, spec: Path | list[Path], folder: Path) -> tuple[Path, Path]:
    """Compile specs as one into ``folder``/patches, apply it to a copy beside the engine.

    Returns the copy and the patch.  Hard links need the engine's own file system.
    """
    shutil.rmtree(folder / "patches", ignore_errors=True)
    specs = [spec] if isinstance(spec, Path) else spec
    cfac("compile", *specs, "--engine", site_packages(engine), "-o", folder / "patches")
    (patch,) = (folder / "patches").glob("*.patch")
    package = copy_package(engine, engine.with_name(f"{engine.name}-{folder.name}"))
    cfac("apply", patch, "--engine", package)
    # the patched files' bytecode: stock has its own since it was installed
    run([engine / "bin" / "python", "-m", "compileall", "-q", package])
    return package, patch
