"""Mutate real vLLM under each anchor of the shipped specs; count where the insertions went.

``python tests/engine/mutations.py --engine build/engine/vllm-0.32.0`` prints a table.
``--json FILE`` writes the counts.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mutation_case import Anchor, Workshop, anchors, open_case
from mutation_scopes import HARMLESS, LAYOUTS, SCOPES
from mutation_statements import STATEMENTS

ROOT = Path(__file__).parents[2]
SPECS = ("process-tree", "fast-start", "prespawn")
VERSION = "0.32.0"
MUTATIONS = {**SCOPES, **STATEMENTS, **LAYOUTS}
OUTCOMES = ("right", "review", "refused", "wrong")


@dataclass
class Outcomes:
    """How often each mutation, by name, ended how; and what must not be."""

    anchors: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    codes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, anchor: Anchor, name: str, outcome: str, why: str) -> None:
        self.counts.setdefault(name, Counter())[outcome] += 1
        if outcome == "refused":
            self.codes[why] += 1
        names = name.split(" + ")
        if outcome == "wrong" or (outcome == "refused" and HARMLESS.issuperset(names)):
            self.failures.append(f"{name} on {anchor.name} ({anchor.site.at}): {outcome}: {why}")

    def total(self, outcome: str) -> int:
        return sum(count[outcome] for count in self.counts.values())


def unique_anchors() -> list[Anchor]:
    """The anchors of the shipped specs; one that several specs share counts once."""
    found: dict[object, Anchor] = {}
    for name in SPECS:
        for anchor in anchors(ROOT / "specs" / "vllm" / f"{name}.yaml", VERSION):
            site = anchor.site
            what = (site.places, site.at, site.kind, site.target, site.names, site.nth)
            found.setdefault((what, anchor.name.split(":")[2]), anchor)
    return list(found.values())


def run(site_packages: Path, folder: Path, plan: Sequence[tuple[Anchor, str]]) -> Outcomes:
    """Apply each mutation of the plan (``a + b``: one after the other) and judge."""
    shop = Workshop(site_packages, folder, VERSION)
    found = Outcomes(len({anchor.name for anchor, _ in plan}))
    planted: dict[str, tuple[str, str]] = {}
    for anchor, name in plan:
        if anchor.name not in planted:
            planted[anchor.name] = shop.prepare(anchor)
            path, text = planted[anchor.name]
            outcome, why = shop.judge(anchor, path, text.encode())
            if outcome != "right":
                found.failures.append(f"unchanged, {anchor.name}: {outcome}: {why}")
        path, text = planted[anchor.name]
        data = mutate(shop, anchor, path, text, name)
        if data is not None:
            found.add(anchor, name, *shop.judge(anchor, path, data))
    return found


def mutate(shop: Workshop, anchor: Anchor, path: str, text: str, name: str) -> bytes | None:
    """The planted file after a mutation; None where it does not apply to this anchor."""
    first, _, then = name.partition(" + ")
    case = open_case(anchor, path, text, shop.root)
    data = MUTATIONS[first](case)
    if data is not None and then:
        case.text = data.decode() if isinstance(data, bytes) else data
        case.tree = ast.parse(case.text)
        data = LAYOUTS[then](case)
    if data is None:
        return None
    data = data.encode() if isinstance(data, str) else data
    compile(data, path, "exec", dont_inherit=True, flags=ast.PyCF_ONLY_AST)
    return data


def everything(pairs: int) -> list[tuple[Anchor, str]]:
    """Every mutation of every anchor, and ``pairs`` of them followed by another layout."""
    every = unique_anchors()
    plan = [(anchor, name) for anchor in every for name in MUTATIONS]
    rng = random.Random(4)
    structural = [*SCOPES, *STATEMENTS]
    for _ in range(pairs):
        name = f"{rng.choice(structural)} + {rng.choice([*LAYOUTS])}"
        plan.append((rng.choice(every), name))
    return plan


def sample() -> list[tuple[Anchor, str]]:
    """Every mutation once, on an anchor that it applies to as far as one is drawn."""
    rng = random.Random(4)
    every = unique_anchors()
    statements = [anchor for anchor in every if anchor.site.target == "call"]
    imports = [anchor for anchor in every if anchor.site.target == "import"]
    plan: list[tuple[Anchor, str]] = []
    for name in MUTATIONS:
        pool = imports if name.startswith("import_") else statements
        plan.append((rng.choice(pool if name in STATEMENTS else every[1:]), name))
    return plan


def table(found: Outcomes) -> Iterator[str]:
    """The outcome of each mutation; pairs are one line."""
    lines: dict[str, Counter[str]] = {}
    for name, count in found.counts.items():
        lines.setdefault("one of these, then another layout" if "+" in name else name, Counter())
        lines["one of these, then another layout" if "+" in name else name] += count
    yield "| mutation | " + " | ".join(OUTCOMES) + " |"
    yield "| --- |" + " ---: |" * len(OUTCOMES)
    for name, count in lines.items():
        cells = " | ".join(str(count[outcome]) for outcome in OUTCOMES)
        yield f"| {name.replace('_', ' ')} | {cells} |"
    cells = " | ".join(str(found.total(outcome)) for outcome in OUTCOMES)
    yield f"| all, on {found.anchors} anchors | {cells} |"


def as_json(found: Outcomes) -> dict[str, object]:
    return {
        "engine": f"vllm {VERSION}",
        "anchors": found.anchors,
        "mutations": len(MUTATIONS),
        "total": {outcome: found.total(outcome) for outcome in OUTCOMES},
        "refused_with": dict(sorted(found.codes.items())),
    }


def site_packages(engine: Path) -> Path:
    [found] = engine.glob("lib/python3*/site-packages")
    return found.resolve()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(site_packages(options.engine), Path(folder), everything(options.pairs))
    print("\n".join([*table(found), *found.failures]))
    if options.json:
        options.json.write_text(json.dumps(as_json(found), indent=1) + "\n")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
