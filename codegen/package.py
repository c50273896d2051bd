"""The files that a patch adds to the engine: ``<engine>/_cfac``."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_TEMPLATES = Path(__file__).parent / "templates"


def package_files(package: str, name: str, plan: str, cfac: str) -> dict[str, bytes]:
    """Path -> content of the generated package, relative to the engine's root."""
    environment = Environment(  # noqa: S701 (Python and JSON are written, not HTML)
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    values = {"name": name, "plan": plan.removesuffix("\n"), "cfac": cfac}
    return {
        f"{package}/_cfac/{file}": environment.get_template(f"{file}.j2").render(values).encode()
        for file in ("__init__.py", "plan.json")
    }
