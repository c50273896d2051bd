"""Write a wheel of pure Python files: equal input gives equal bytes.

The form is that of the binary distribution format (packaging.python.org).  Nothing is
compressed: what deflate gives depends on the zlib that is installed.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from dataclasses import dataclass, field

_WHEEL = "Wheel-Version: 1.0\nGenerator: cfac\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_METADATA = """\
Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: {summary}
License-Expression: Apache-2.0
Requires-Python: >=3.11
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip file knows


@dataclass(slots=True)
class Wheel:
    """A distribution: its name, its version (in canonical form), and its files."""

    name: str
    version: str
    summary: str
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def _stem(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}"

    @property
    def filename(self) -> str:
        """The wheel's file name."""
        return f"{self._stem}-py3-none-any.whl"

    def build(self) -> bytes:
        """The wheel's bytes."""
        info = f"{self._stem}.dist-info"
        metadata = _METADATA.format(name=self.name, version=self.version, summary=self.summary)
        files = {path: self.files[path] for path in sorted(self.files)}
        files[f"{info}/METADATA"] = metadata.encode()
        files[f"{info}/WHEEL"] = _WHEEL.encode()
        rows = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
        files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            for path, data in files.items():
                entry = zipfile.ZipInfo(path, _EPOCH)
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, data)
        return out.getvalue()


def _digest(data: bytes) -> str:
    """A hash as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
