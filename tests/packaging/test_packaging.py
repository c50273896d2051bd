"""The wheel, the sdist and an editable install, used from outside the checkout."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKED = ["specs", "compiler", "codegen", "runtime", "native"]
PIP = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
CHANNEL = """
from cfac import Channel
with Channel("process") as channel:
    channel.set_state("a", "One", {"n": 1})
    print(channel.wait_state("a", "One", 10))
"""


def run(*command: str | Path, cwd: Path = ROOT, **extra: str) -> str:
    hidden = ("CFAC_", "PYTHONPATH")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)} | extra
    done = subprocess.run(
        list(command), cwd=cwd, env=environment, capture_output=True, text=True, input="1 2 3\n"
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(source: Path, out: Path, **extra: str) -> Path:
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source, **extra)
    (wheel,) = out.glob("*.whl")
    return wheel


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


class Environment:
    """A virtual environment with cfac's dependencies in sight, but not this checkout's cfac."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        self.outside = folder / "elsewhere"
        self.outside.mkdir()
        self.site = next(folder.glob("lib/python3*/site-packages"))
        # a path in a .pth file: modules are found there, its own .pth files are not read
        (self.site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def install(self, *arguments: str | Path) -> Environment:
        options = ["install", "--no-deps", "--no-build-isolation"]
        run(*PIP, "--python", self.bin / "python", *options, *arguments)
        return self

    def __call__(self, command: str, *arguments: str | Path, **extra: str) -> str:
        return run(self.bin / command, *arguments, cwd=self.outside, **extra)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_declares_the_plugin(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt"))
        entries = configparser.ConfigParser()
        entries.read_string(archive.read(name).decode())
    assert entries["vllm.general_plugins"]["cfac"] == "cfac.runtime.vllm_plugin:register"


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request, tmp_path_factory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp(request.param))
    if request.param == "editable":
        return environment.install("--editable", ROOT)
    return environment.install("--no-index", request.getfixturevalue("wheel"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *LINKED]
    listed = [name for name in run(*command).split("\0") if name and (ROOT / name).is_file()]
    listed = [name for name in listed if not name.startswith("native/") or name.endswith(".py")]
    expected = {f"cfac/{name}" for name in listed} | {"cfac/__init__.py", "cfac/py.typed"}
    expected.add("cfac/native/libcfac.so")
    assert wheel.name.startswith("cfac-") and "-py3-none-linux_" in wheel.name
    assert {name for name in names(wheel) if ".dist-info/" not in name} == expected
    for name in (
        "cfac/compiler/explain/CF301.md",
        "cfac/codegen/templates/__init__.py.j2",
        "cfac/specs/cfac-v1.schema.json",
        "cfac/specs/vllm/process-tree.yaml",
        "cfac/runtime/owner_main.py",
    ):
        assert name in expected


def test_it_needs_neither_torch_nor_vllm(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    assert metadata["License-Expression"] == "Apache-2.0"
    required = metadata.get_all("Requires-Dist")
    heavy = [line for line in required if line.startswith(("torch", "vllm"))]
    assert sorted(metadata.get_all("Provides-Extra")) == ["gateway", "load", "vllm"]
    assert len(heavy) == 2
    assert all("extra ==" in line for line in heavy)
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names(wheel))


def test_the_sdist_gives_the_same_wheel(wheel, tmp_path):
    build = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", build)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert tops.isdisjoint({"build", "tests", ".venv", ".git", *LINKED})
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert names(build_wheel(source, tmp_path / "out")) == names(wheel)


def test_without_a_compiler_only_the_library_is_missing(wheel, tmp_path):
    bare = build_wheel(ROOT, tmp_path / "out", CC="/nowhere/cc")
    assert names(wheel) - names(bare) == {"cfac/native/libcfac.so"}
    environment = Environment(tmp_path / "venv").install("--no-index", bare)
    says = "import cfac.native.binding as b\ntry: b.library()\nexcept ImportError as e: print(e)"
    assert "C library is missing" in environment("python", "-c", says)


def test_the_c_library_loads(installed):
    code = "from cfac.native.binding import library as l\n"
    code += "print(l()._name, l().cfac_crc32c(0, b'123456789', 9))"
    path, checksum = installed("python", "-c", code).split()
    assert Path(path).is_relative_to(installed.site)
    assert int(checksum) == 0xE3069283  # CRC-32C's check value


def test_the_commands_work_from_another_folder(installed):
    assert "Commands:" in installed("cfac", "--help")
    assert "CF301" in installed("cfac", "explain", "CF301")
    assert '"$schema"' in installed("cfac", "schema")
    where = "import cfac.specs; print(cfac.specs.__path__[0])"
    spec = Path(installed("python", "-c", where).strip()) / "vllm" / "process-tree.yaml"
    assert "frontend.Ready" in installed("cfac", "check", spec)


def test_the_imports_are_lean(installed):
    lean = "import sys, cfac.runtime.boot; print('click' in sys.modules, 'yaml' in sys.modules)"
    assert installed("python", "-c", lean).split() == ["False", "False"]
    heavy = (
        "import sys, cfac.compiler.cli, cfac.codegen.compile;"
        "print({'torch', 'vllm'} & set(sys.modules))"
    )
    assert installed("python", "-c", heavy).strip() == "set()"


def test_the_owner_process_starts_where_cfac_is_installed(installed, tmp_path):
    assert installed("python", "-c", CHANNEL, CFAC_RUNS=str(tmp_path)).strip() == "{'n': 1}"


def test_a_patched_engine_starts_with_the_installed_cfac(installed, tmp_path):
    engine, runs, out = tmp_path / "engine", tmp_path / "runs", tmp_path / "patches"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "examples" / "tiny_engine", engine, ignore=ignored)
    installed("cfac", "compile", engine / "startup.yaml", "--engine", engine, "-o", out)
    (patch,) = out.glob("*.patch")
    installed("cfac", "apply", patch, "--engine", engine)
    python = installed.bin / "python"
    run(python, "-m", "tinyengine.frontend", cwd=engine, CFAC_RUNS=str(runs))
    assert "follows its spec" in installed("cfac", "trace", "verify", CFAC_RUNS=str(runs))
