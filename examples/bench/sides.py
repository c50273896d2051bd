"""The sides of a comparison on a real vLLM: stock, and engines patched from specs.

Each ``--spec [LABEL=]PATH`` is a side of its own, so that an ablation is a list of
specs.  The options that every benchmark of a real engine takes are here too.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tree import adopt_orphans, end_descendants

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "vllm"))
sys.path.append(str(ROOT))  # cfac of this checkout, where none is installed

from offline import Offline  # noqa: E402
from prepare import SPEC, install_cfac, patched_copy  # noqa: E402
from server import ENVIRONMENT, SETTINGS, Server, copy_package, free_port  # noqa: E402

OUT = ROOT / "build" / "bench"
SPECS = [SPEC, SPEC.with_name("fast-start.yaml")]
STOCK, COPY, OBSERVED = "stock", "copy", "observed"
#: How long a start's processes may take to end after the engine was stopped.
END_SECONDS = 40.0


class BenchFailed(Exception):
    """The benchmark cannot go on; the message says why, with the server's log if it has one."""


class WrongAnswer(BenchFailed):
    """A patched engine answered other tokens or logprobs than the stock one."""


@dataclass(frozen=True)
class Side:
    """One engine to start: its label, and what its Server is given beside the common."""

    label: str
    options: dict[str, Any] = field(default_factory=dict)


def labelled(text: str) -> tuple[str, Path]:
    """``LABEL=PATH`` or ``PATH``, whose stem is the label."""
    label, equals, path = text.partition("=")
    found = (label, Path(path)) if equals else (Path(text).stem, Path(text))
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", found[0]) or found[0] in {STOCK, COPY, OBSERVED}:
        raise argparse.ArgumentTypeError(f"{found[0]!r} cannot be a label: write LABEL={text}")
    if not found[1].is_file():
        raise argparse.ArgumentTypeError(f"no spec at {found[1]}")
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of what is started and how."""
    parser.add_argument("--engine", type=Path, required=True, help="made by setup_engine.py")
    parser.add_argument("--model", type=Path, required=True, help="made by make_model.py")
    parser.add_argument(
        "--spec",
        type=labelled,
        action="append",
        dest="specs",
        metavar="[LABEL=]PATH",
        help="a side beside stock, several times for several; default: the shipped ones",
    )
    parser.add_argument("--tensor-parallel", type=int, default=1, choices=(1, 2))
    parser.add_argument("--no-eager", action="store_true", help="compiled, from a warm cache")
    parser.add_argument("--json", type=Path, help="where the samples go; default: build/bench")


def checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The parsed command line, its paths absolute and its labels distinct."""
    arguments = parser.parse_args()
    arguments.specs = arguments.specs or [(spec.stem, spec) for spec in SPECS]
    labels = [label for label, _ in arguments.specs]
    if len(set(labels)) < len(labels):
        parser.error(f"two specs have one label: {', '.join(labels)}; write --spec LABEL=PATH")
    for name in ("engine", "model"):
        if not getattr(arguments, name).exists():
            parser.error(f"no {name} at {getattr(arguments, name)}: run make engine")
        setattr(arguments, name, getattr(arguments, name).resolve())
    return arguments


def common_options(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What all sides' servers are given.  All caches are in ``folder`` and shared.

    Two workers are bound to a core each, as a user would; one is not bound.
    """
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    if arguments.tensor_parallel > 1:
        cores = "|".join(map(str, range(arguments.tensor_parallel)))
        environment["VLLM_CPU_OMP_THREADS_BIND"] = cores
    return {
        "engine": arguments.engine,
        "model": arguments.model,
        "tensor_parallel": arguments.tensor_parallel,
        "eager": not arguments.no_eager,
        "cache": folder / "cache",
        "environment": environment,
    }


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the JSON file says of the options."""
    return {
        "engine": arguments.engine.name,
        "model": arguments.model.name,
        "specs": {label: spec.name for label, spec in arguments.specs},
        "tensor_parallel": arguments.tensor_parallel,
        "eager": not arguments.no_eager,
    }


def patched(engine: Path, label: str, spec: Path, site: Path, **options: Any) -> Side:
    """The engine's copy with the spec's patch, made now."""
    folder = OUT / label
    folder.mkdir(parents=True, exist_ok=True)
    package, _ = patched_copy(engine, spec.resolve(), folder)
    return Side(label, {"package": package, "paths": [site], **options})


def make_sides(arguments: argparse.Namespace, copy: bool = False) -> list[Side]:
    """Stock, then with ``copy`` its unpatched copy, then a side for each spec.

    A copy stands before the engine on PYTHONPATH, which every import searches: that
    much of a patched side's time is the measurement's.  The unpatched copy shows it.
    """
    OUT.mkdir(parents=True, exist_ok=True)
    site = install_cfac(OUT / "site")
    sides = [Side(STOCK)]
    if copy:
        engine = arguments.engine
        package = copy_package(engine, engine.with_name(f"{engine.name}-{COPY}"))
        sides.append(Side(COPY, {"package": package, "paths": [site]}))
    return sides + [patched(arguments.engine, *one, site) for one in arguments.specs]


@contextmanager
def started(
    side: Side, kind: type[Server] = Server, *, alone: bool = True, **common: Any
) -> Iterator[Server]:
    """The side's engine, stopped at the end; BenchFailed if it fails or leaves processes.

    One that is not ``alone`` leaves that last to the one which was up before it.
    """
    environment = common.pop("environment", {}) | side.options.get("environment", {})
    server = kind(**common | side.options | {"environment": environment})
    try:
        with server:
            try:
                yield server
            except (OSError, RuntimeError, HTTPException) as error:
                text = f"{side.label}: {error}"
                tail = server.log_tail
                raise BenchFailed(text if tail in text else f"{text}\n{tail}") from error
    except BaseException:
        if alone:
            end_descendants(1.0)
        raise
    if alone and (left := end_descendants(END_SECONDS)):
        raise BenchFailed(f"{side.label} left processes behind:\n" + "\n".join(left))


@contextmanager
def bench() -> Iterator[None]:
    """A benchmark's frame: SIGTERM unwinds it, and a failure is a message and exit code 1."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    try:
        yield
    except BenchFailed as error:
        sys.exit(f"failed: {error}")


__all__ = [
    "ENVIRONMENT",
    "OBSERVED",
    "OUT",
    "SETTINGS",
    "SPEC",
    "STOCK",
    "Offline",
    "Server",
    "Side",
    "free_port",
    "install_cfac",
    "patched_copy",
]
