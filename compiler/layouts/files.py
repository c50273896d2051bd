"""Which files make up a model, and what is wrong with it as a diagnostic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cfac.native.files import MissingShardError, find


class LayoutError(Exception):
    """What is wrong with a model, its index or its layout; ``code`` is a diagnostic's."""

    def __init__(self, code: str, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.help = help


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files in the order in which they are read; ``index`` where one lists them.

    ``weight_map`` is the index's: a tensor's name to the number of its file.
    """

    paths: tuple[Path, ...]
    index: Path | None = None
    weight_map: Mapping[str, int] = field(default_factory=dict)


def model_files(path: Path) -> ModelFiles:
    """The files of the model at ``path``, as the loader finds them; LayoutError CF621 or CF622."""
    try:
        if not path.exists():
            raise LayoutError("CF622", f"{path}: there is no such file or folder")
        found = find(path)
    except MissingShardError as error:
        hint = "finish the download, or name the files that are there"
        raise LayoutError("CF621", str(error.strerror), hint) from error
    except OSError as error:
        raise LayoutError("CF622", f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise LayoutError("CF621", str(error)) from error
    index = next(iter(found.index_of.values()), None)
    paths = tuple(Path(name) for name in found.paths)
    return ModelFiles(paths, Path(index) if index is not None else None, found.where)
