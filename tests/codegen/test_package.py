"""The generated package: it must never hurt the engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from codegen_support import REPOSITORY, SPEC, compile_case, make_engine

from cfac.codegen.apply import apply
from cfac.codegen.package import package_files

PROGRAM = """
import time, tiny._cfac as c
def bad(): raise RuntimeError
assert c.publish("a", index=bad, value=bad, params=bad) is None
assert c.wait("a", index=bad) is None and c.begin("a") is None
assert c.replaced("a", len, index=bad)("xyz") == 3
assert c.replaced("a", len) is len
assert c.start("core", len) is len and c.context("core", len) is len
assert c.now("import a", "a", {}) is True and c.use("import a", {}) is None
assert c.deferred("defer:a", len) is len and c.later("defer:b", len, until="c") is len
def cpu(work):
    start = time.process_time()
    for _ in range(10000): work("a", value=lambda: bad())
    return time.process_time() - start
assert min(cpu(c.publish) for _ in range(3)) < 20 * min(cpu(lambda *_, value: 1) for _ in range(3))
print("fine")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, data in package_files("tiny", "start", "{}\n", "1").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    (tmp_path / "tiny/__init__.py").write_text("")
    return tmp_path


def run(root: Path, program: str, *paths: Path, **environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": ":".join(map(str, (root, *paths))), **environment},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def fake(root: Path, boot: str) -> Path:
    folder = root / "fake" / "cfac" / "runtime"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").write_text("")
    (folder / "boot.py").write_text(boot)
    return root / "fake"


def test_without_cfac(root: Path) -> None:
    out, err = run(root, PROGRAM)
    assert out == "fine\n"
    assert len(err.splitlines()) == 1
    assert "starts as stock: cfac cannot be imported" in err


def test_disabled(root: Path) -> None:
    out, err = run(root, PROGRAM, fake(root, "raise SystemExit\n"), CFAC_DISABLE="1")
    assert (out, len(err.splitlines())) == ("fine\n", 1)
    assert "CFAC_DISABLE is set" in err


@pytest.mark.parametrize("boot", ["x = 1\n", "def attach(p): raise OSError('no')\n", "1/0\n"])
def test_broken(root: Path, boot: str) -> None:
    out, err = run(root, PROGRAM, fake(root, boot))
    assert (out, len(err.splitlines())) == ("fine\n", 1)


def test_attached(root: Path) -> None:
    boot = (
        "class attach:\n"
        "    def __init__(self, path): self.path = path\n"
        "    def publish(self, name): print(name, open(self.path).read())\n"
        "    wait = begin = stop = replaced = take = start = context = publish\n"
        "    deferred = later = now = use = publish\n"
    )
    out, err = run(root, "from tiny import _cfac; _cfac.publish('a')", fake(root, boot))
    assert (out, err) == ("a {}\n\n", "")


def test_patched_engine_runs_as_stock(tmp_path: Path) -> None:
    """Without cfac, and with CFAC_DISABLE=1; also where the package itself is patched."""
    main = "def run():\n    return work()\n\n\ndef work():\n    return 7\n"
    engine = make_engine(tmp_path / "engine", main)
    spec = SPEC.replace("at: after", "at: replace_callee").replace("[Start,", "[Start, Born,")
    spec += "  core.Born: {publish: {in: tiny, at: entry, value: __name__}}\n"
    (tmp_path / "spec.yaml").write_text(spec)
    result, text = compile_case(tmp_path)
    assert result is not None and result.ok, text
    apply(result.patch, engine)
    program = "import tiny.main; print(tiny.main.run(), tiny.__version__)"
    assert run(engine, program) == ("7 1.2.0\n", run(engine, program)[1])
    assert "starts as stock" in run(engine, program)[1]
    out, err = run(engine, program, REPOSITORY, CFAC_DISABLE="1")
    assert out == "7 1.2.0\n" and "CFAC_DISABLE is set" in err
