"""A tiny engine."""

__version__ = "1.2.0"
