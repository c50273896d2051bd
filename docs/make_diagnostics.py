"""Write the table of all codes into docs/diagnostics.md, from compiler/explain.

``python docs/make_diagnostics.py`` rewrites it; with ``--check`` nothing is written,
and the exit code is 3 if it is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cfac.compiler.explanations import codes, load_explanation

PAGE = Path(__file__).with_name("diagnostics.md")
BEGIN, END = "<!-- codes: begin -->\n", "<!-- codes: end -->\n"
GROUPS = {
    "CF1": "the text of a spec",
    "CF2": "names and references",
    "CF3": "the graph, the chain, merges",
    "CF4": "the engine and the patch",
    "CF5": "hazards",
    "CF6": "layouts",
}


def table() -> str:
    """The table: a line for each code, its severity and its title."""
    lines = ["| code | severity | meaning |", "| --- | --- | --- |"]
    found = codes()
    for prefix, title in GROUPS.items():
        lines.append(f"| **{prefix}xx** | | **{title}** |")
        for code in (known for known in found if known.startswith(prefix)):
            explanation = load_explanation(code)
            assert explanation is not None
            # An explanation of a warning says so, in these words.
            warns = "a warning" in explanation.prose.lower()
            lines.append(f"| {code} | {'warning' if warns else 'error'} | {explanation.title} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page's text with the table of now in it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE}: no place for the table ({BEGIN.strip()} … {END.strip()})")
    return before + begin + table() + end + after


def main() -> int:
    """Write the page, or compare it."""
    text = PAGE.read_text("utf-8")
    wanted = page(text)
    if "--check" in sys.argv[1:]:
        return 0 if text == wanted else 3
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
