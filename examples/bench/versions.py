"""The shipped specs on many engine versions: what binds, what applies, what starts.

``python examples/bench/versions.py --json docs/figures/versions.json`` compiles every
shipped spec for the unpacked sources of each version (``examples/vllm/sources.py``),
applies the patch to a copy, byte-compiles the edited files, takes the patch out again
and compares all bytes.  No engine is imported for that.

With ``--boot ENGINE MODEL`` (several times), it also starts that real vLLM stock and
with each patch, at one and at two workers: the answers must be equal, and the trace must
follow the spec; of the process tree, whose start is only observed, the chain too.  Starts of
engines that are not named are kept as they are in the JSON file, with their date.
``docs/make_versions.py`` writes the tables of docs/versions.md from that file.
"""

from __future__ import annotations

import argparse
import json
import py_compile
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sides import OUT, ROOT, BenchFailed, Server, Side, bench, started
from stats import write_json

from cfac.codegen.apply import apply, unapply
from cfac.codegen.compile import CompileResult, compile_engine
from cfac.codegen.engine import find_engine
from cfac.compiler.api import check, load
from cfac.compiler.diagnostics import Diagnostics
from cfac.runtime.history import read_run
from cfac.runtime.verify import verify

from prepare import cfac, install_cfac, patched_copy  # isort: skip
from sources import SOURCES, WHEELS, fetch  # isort: skip

#: package -> its shipped specs.
SPECS = {
    "vllm": ["process-tree", "prespawn", "fast-start"],
    "sglang": ["process-tree"],
}
WORKERS = (1, 2)
PROMPTS = ["The engine starts", "One two three"]


def spec_file(package: str, name: str) -> Path:
    return ROOT / "specs" / package / f"{name}.yaml"


def compiled(
    spec: Path, tree: Path, *, allow_partial: bool
) -> tuple[CompileResult | None, Diagnostics]:
    """What a spec gives for a tree; None where the version is not the spec's or it is wrong."""
    loaded, found = load(spec)
    diagnostics = Diagnostics(list(found))
    if loaded is None or diagnostics.errors:
        return None, diagnostics
    diagnostics.extend(check(loaded).diagnostics)
    engine = find_engine(loaded, tree, diagnostics)
    if engine is None or diagnostics.errors:
        return None, diagnostics
    result = compile_engine(loaded, engine, allow_partial=allow_partial)
    diagnostics.extend(result.diagnostics)
    return result, diagnostics


def examine(spec: Path, tree: Path, folder: Path) -> dict[str, Any]:
    """One spec on one version: its constructs, and what its patch does to the files.

    ``folder`` is an empty folder to work in.
    """
    whole, said = compiled(spec, tree, allow_partial=False)
    result, diagnostics = whole, said
    if whole is not None and not whole.ok:
        result, diagnostics = compiled(spec, tree, allow_partial=True)
    warnings = [d for d in diagnostics if d.severity == "warning" and d.code != "CF433"]
    row: dict[str, Any] = {
        "errors": [f"{e.code}: {e.message}" for e in said.errors],
        "warnings": [f"{w.code}: {w.message}".replace(f"{ROOT}/", "") for w in warnings],
        "left_out": [],
    }
    if result is None or not result.ok:
        return row
    row |= {
        "bound": result.bound,
        "declared": result.declared,
        "left_out": [loss.lost for loss in result.losses],
        "sites": places(result),
    }
    originals = copy_files(result, tree, folder)
    applied = apply(result.patch, folder)
    row["files"] = len(applied.changed)
    for path in originals:
        py_compile.compile(str(folder / path), cfile=str(folder / "out.pyc"), doraise=True)
    changed = [p for p, old in originals.items() if (folder / p).read_bytes() != old]
    row["applies"] = sorted(changed) == sorted(originals)
    row["parses"] = True  # py_compile raises
    unapply(result.patch, folder)
    (folder / "out.pyc").unlink(missing_ok=True)
    left = {p.relative_to(folder).as_posix(): p.read_bytes() for p in files(folder)}
    row["restored"] = left == originals
    return row


def places(result: CompileResult) -> dict[str, str]:
    """``core.Ready begin, FUNCTION`` -> the lines of it in the unpatched file."""
    found: dict[str, list[str]] = {}
    for row in result.rows:
        name = f"{row.transition} {row.kind}, {row.place.rpartition(':')[2]}"
        found.setdefault(name, []).append(str(row.line) if row.line else "yes")
    return {name: ", ".join(lines) for name, lines in found.items()}


def copy_files(result: CompileResult, tree: Path, folder: Path) -> dict[str, bytes]:
    """Copy the files that a patch changes; their bytes by path."""
    found: dict[str, bytes] = {}
    for name in result.files:
        if (tree / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / name, folder / name)
            found[name] = (folder / name).read_bytes()
    return found


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def boot(
    engine: Path, model: Path, names: list[str], workers_of: Sequence[int] = WORKERS
) -> dict[str, Any]:
    """Start a real vLLM stock and with each spec's patch.  BenchFailed if one does not."""
    site = install_cfac(OUT / "site")
    outcome: dict[str, Any] = {}
    for workers in workers_of:
        common = {
            "engine": engine,
            "model": model,
            "tensor_parallel": workers,
            "cache": OUT / "versions-cache" / engine.name,
        }
        expected = None
        for name in ["stock", *names]:
            side = Side("stock")
            if name != "stock":
                folder = OUT / f"versions-{name}"
                folder.mkdir(parents=True, exist_ok=True)
                package, _ = patched_copy(engine, spec_file("vllm", name), folder)
                observe = {"CFAC_OBSERVE": "1"} if name == "process-tree" else {}
                side = Side(name, {"package": package, "paths": [site], "environment": observe})
            try:
                with started(side, **common) as server:
                    seconds = server.wait_ready()
                    answers = [server.complete(prompt) for prompt in PROMPTS]
                    run = server.run_folder()
                    server.stop()
                    said = problems(server, run, name) if name != "stock" else []
                    states = len(read_run(run).publishes) if run else 0
            finally:
                if name != "stock":
                    shutil.rmtree(package, ignore_errors=True)
            expected = expected or answers
            if answers != expected:
                said.append("other answers than stock")
            if said:
                raise BenchFailed(f"{engine.name}, {name}, {workers} workers: {'; '.join(said)}")
            outcome[f"{name} {workers}"] = {"states": states}
            print(f"{engine.name}: {name}, {workers} workers: ready after {seconds:.1f} s")
    return outcome


def problems(server: Server, run: Path | None, name: str) -> list[str]:
    """What is wrong with a patched start's trace, log or exit."""
    if run is None:
        return [f"no run was recorded:\n{server.log_tail}"]
    history = read_run(run)
    found = [f.message for f in verify(history, chain=name == "process-tree")]
    found += [f"fallback: {event}" for event in history.of("fallback")]
    if server.process is not None and server.process.returncode != 0:
        found.append(f"exit code {server.process.returncode}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sources", type=Path, default=SOURCES, help="default: build/sources")
    parser.add_argument("--json", type=Path, default=OUT / "versions.json")
    parser.add_argument(
        "--boot",
        type=Path,
        nargs=2,
        action="append",
        default=[],
        metavar=("ENGINE", "MODEL"),
        help="a real engine to start (its folder ends in its version), and a model for it",
    )
    parser.add_argument(
        "--boot-only", action="store_true", help="keep what the file says of the sources"
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=WORKERS,
        help="for --boot: at how many workers each is started; default: 1 2",
    )
    arguments = parser.parse_args()
    old = json.loads(arguments.json.read_text("utf-8")) if arguments.json.exists() else {}
    found: dict[str, Any] = old.get("engines", {}) if arguments.boot_only else {}
    for package, version in [] if arguments.boot_only else WHEELS:
        tree = fetch(package, version, arguments.sources.resolve())
        for name in SPECS[package]:
            with tempfile.TemporaryDirectory() as folder:
                row = examine(spec_file(package, name), tree, Path(folder))
            found.setdefault(f"{package} {version}", {})[name] = row
            count = f"{row['bound']} of {row['declared']} bound" if "bound" in row else "refused"
            print(f"{package} {version}: {name}: {count}, {len(row['left_out'])} left out")
    boots = old.get("boots", {})
    with bench():
        for engine, model in arguments.boot:
            version = re.sub(r".*-", "", engine.resolve().name)
            names = [n for n in SPECS["vllm"] if "bound" in found[f"vllm {version}"][n]]
            date = datetime.now(UTC).strftime("%Y-%m-%d")
            starts = boot(engine.resolve(), model.resolve(), names, arguments.workers)
            known = boots.get(f"vllm {version}", {}).get("starts", {})
            boots[f"vllm {version}"] = {"date": date, "starts": known | starts}
    cfac_version = cfac("--version").split()[-1]
    write_json(arguments.json, {"cfac": cfac_version, "engines": found, "boots": boots})
    return 0


if __name__ == "__main__":
    sys.exit(main())
