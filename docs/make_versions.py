"""Write the tables of docs/versions.md from docs/figures/versions.json.

The figures come from examples/bench/versions.py.  ``python docs/make_versions.py``
rewrites the tables; with ``--check`` nothing is written, and the exit code is 3 if they
are out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGE = DOCS / "versions.md"
FIGURES = DOCS / "figures" / "versions.json"
BEGIN, END = "<!-- versions: begin -->\n", "<!-- versions: end -->\n"
NOTHING = "-"


def tables(data: dict[str, Any]) -> str:
    """The summary, what is left out, and a table of constructs for each spec."""
    engines: dict[str, Any] = data["engines"]
    out = [
        "| engine | spec | transitions bound | left out | patch applies | files parse "
        "| bytes restored | boots |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for engine, specs in engines.items():
        for name, row in specs.items():
            out.append(_summary(engine, name, row, data["boots"].get(engine)))
    where = data["where"]
    out += ["", f"Taken on {where['date']}, Python {where['python']}, cfac {data['cfac']}."]
    out += [f"Starts of {name}: {boot['date']}." for name, boot in data["boots"].items()]
    lost = [
        f"- {engine}, {name}: {text}."
        for engine, specs in engines.items()
        for name, row in specs.items()
        for text in row["left_out"]
    ]
    warned = [
        f"- {engine}, {name}: {text}."
        for engine, specs in engines.items()
        for name, row in specs.items()
        for text in row["warnings"]
    ]
    out += ["", "Left out with `--allow-partial`, an error without:", "", *(lost or ["- nothing."])]
    out += ["", "Warnings:", "", *warned] if warned else []
    for package in dict.fromkeys(engine.split()[0] for engine in engines):
        versions = {e.split()[1]: specs for e, specs in engines.items() if e.split()[0] == package}
        for name in dict.fromkeys(n for specs in versions.values() for n in specs):
            out += ["", f"### {package}, {name}", "", *_constructs(name, versions)]
    return "\n".join(out) + "\n"


def _summary(engine: str, name: str, row: dict[str, Any], boot: dict[str, Any] | None) -> str:
    if "bound" not in row:
        reason = row["errors"][0].partition(":")[0]
        return f"| {engine} | {name} | refused ({reason}) |" + f" {NOTHING} |" * 5
    starts = boot["starts"] if boot else {}
    workers = [key.split()[1] for key in starts if key.split()[0] == name]
    boots = "TP=" + ", ".join(workers) if workers else "no record"
    yes = [{True: "yes", False: "**no**"}[row[key]] for key in ("applies", "parses", "restored")]
    bound = f"{row['bound']} of {row['declared']}"
    cells = [engine, name, bound, str(len(row["left_out"])), *yes, boots]
    return "| " + " | ".join(cells) + " |"


def _constructs(name: str, versions: dict[str, Any]) -> list[str]:
    """A spec's constructs by version: the line where each one is, for orientation."""
    rows = {version: specs[name].get("sites", {}) for version, specs in versions.items()}
    found = dict.fromkeys(site for sites in rows.values() for site in sites)
    out = ["| construct, function | " + " | ".join(rows) + " |"]
    out += ["| --- |" + " --- |" * len(rows)]
    for site in found:
        construct, _, function = site.partition(", ")
        cells = [sites.get(site, NOTHING) for sites in rows.values()]
        out.append(f"| `{construct}`, `{function}` | " + " | ".join(cells) + " |")
    return out


def page(text: str) -> str:
    """The page's text with the tables of now in it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE}: no place for the tables ({BEGIN.strip()} … {END.strip()})")
    return before + begin + tables(json.loads(FIGURES.read_text("utf-8"))) + end + after


def main() -> int:
    """Write the page, or check it."""
    old = PAGE.read_text("utf-8")
    new = page(old)
    if old == new:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE.name} is out of date: run python docs/make_versions.py", file=sys.stderr)
        return 3
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
