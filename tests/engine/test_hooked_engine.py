"""The import hook on real vLLM: installed with pip beside an engine that nothing changes."""

import ast
import hashlib
import os
import sys

import pytest
from real_engine import ROOT, Hooked, as_stock, cfac, run, started, vllm_server

from cfac.codegen.compile import compile_engine
from cfac.codegen.engine import find_engine
from cfac.compiler.api import load
from cfac.compiler.diagnostics import Diagnostics

sys.path.insert(0, str(ROOT / "tests" / "codegen"))
from codegen_support import relocated, unedited

FAST = ROOT / "specs" / "vllm" / "fast-start.yaml"


def contents(site):
    """Path -> hash of the engine's own files, and size and time of everything beside them.

    Bytecode is left out: another start of this engine may write it meanwhile.
    """
    found = {}
    for folder, folders, names in os.walk(site):
        folders[:] = [name for name in folders if name != "__pycache__"]
        own = os.path.relpath(folder, site).split(os.sep)[0] == "vllm"
        for name in names:
            path = os.path.join(folder, name)
            if own:
                with open(path, "rb") as file:
                    found[path] = hashlib.file_digest(file, "sha256").hexdigest()
            else:
                status = os.lstat(path)
                found[path] = status.st_size, status.st_mtime_ns, status.st_ino
    return found


@pytest.mark.parametrize("name", ["fast-start", "prespawn"])
def test_every_line_of_the_edited_modules_is_the_originals(engine, name):
    spec, _ = load(str(FAST.with_name(f"{name}.yaml")))
    tree = find_engine(spec, engine, Diagnostics())
    result = compile_engine(spec, tree)
    assert result.ok
    edited = [change for change in result.changes if change.before is not None]
    assert len(edited) > 5
    for change in edited:
        found, original = unedited(relocated(change)), ast.parse(change.before)
        assert ast.dump(found, include_attributes=True) == ast.dump(
            original, include_attributes=True
        ), change.path


def test_an_installed_hook_starts_fast_and_uninstalled_leaves_nothing(engine, serve, tmp_path):
    before = contents(vllm_server.site_packages(engine))
    assert any(path.endswith("vllm/v1/engine/core.py") for path in before)
    environment = Hooked(tmp_path / "environment", engine)
    files = environment.files()
    cfac("compile", str(FAST), "--engine", str(engine), "-o", str(tmp_path), "--backend", "hook")
    environment.install(next(tmp_path.glob("*.whl")))
    installed = sorted(set(environment.files()) - set(files))
    assert any(name.endswith("cfac_hook_vllm_fast_start.pth") for name in installed)

    history = as_stock(serve, environment, 1)
    # forked before there was a config
    assert started(history)["EngineCore"] < history.end("frontend", "ConfigReady")
    assert history.end("worker[0]", "Start") < history.end("frontend", "Ready")

    gated = "import sys, vllm; assert not hasattr(vllm, '_cfac'); print(sys.meta_path)"
    assert "cfac" not in run(environment.engine / "bin" / "python", "-c", gated)

    environment.pip("uninstall", "--yes", "cfac-hook-vllm-fast-start")
    assert environment.files() == files
    assert contents(vllm_server.site_packages(engine)) == before
