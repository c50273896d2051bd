"""The import hook on real vLLM: installed with pip beside an engine that nothing changes."""

import hashlib
import os

from real_engine import ROOT, Hooked, as_stock, cfac, run, vllm_server

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
    assert history.end("core", "Start") < history.end("frontend", "ConfigReady")
    assert history.end("worker[0]", "Start") < history.end("frontend", "Ready")

    gated = "import sys, vllm; assert not hasattr(vllm, '_cfac'); print(sys.meta_path)"
    assert "cfac" not in run(environment.engine / "bin" / "python", "-c", gated)

    environment.pip("uninstall", "--yes", "cfac-hook-vllm-fast-start")
    assert environment.files() == files
    assert contents(vllm_server.site_packages(engine)) == before
