"""A tiny engine."""

__version__ = "2.1"
