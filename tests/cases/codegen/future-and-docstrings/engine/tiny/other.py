"""Doc."""
from __future__ import annotations
name = 1
