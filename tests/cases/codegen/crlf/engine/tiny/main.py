"""Doc."""

import os


def run(x):
    """Doc
    string."""
    if x:
        return os
    work()
