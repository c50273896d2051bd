"""Messages between a client and the owner process: length-prefixed JSON.

A frame is a big-endian 32-bit length and that many bytes of UTF-8 JSON.  Bytes
values travel as ``{"$bytes": base64}``.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

from cfac.runtime.errors import ChannelError

#: Values are small by contract (DESIGN: small JSON or bytes).
MAX_FRAME = 16 << 20
_LENGTH = struct.Struct(">I")


def _encode_bytes(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(bytes(value)).decode("ascii")}
    raise TypeError(f"a state's value must be JSON or bytes, not {type(value).__name__}")


def _decode_bytes(value: dict[str, Any]) -> Any:
    if len(value) == 1 and "$bytes" in value:
        return base64.b64decode(value["$bytes"])
    return value


def pack(message: dict[str, Any]) -> bytes:
    """One frame.  TypeError for a value that is neither JSON nor bytes."""
    body = json.dumps(message, separators=(",", ":"), default=_encode_bytes).encode()
    if len(body) > MAX_FRAME:
        raise ChannelError(f"a message of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Turns received bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Add bytes, yield the messages that are complete."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise ChannelError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            message = json.loads(body, object_hook=_decode_bytes)
            if not isinstance(message, dict):
                raise ChannelError("a message must be an object")
            yield message
