# A licence.
"""A module
docstring."""

from __future__ import (
    annotations,
)
from __future__ import division  # twice

import tiny.other as alias
from .other import name

READY: int
READY, other = 1, alias


def only():
    """Only a docstring."""
