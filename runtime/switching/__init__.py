"""Switching a server from one model to another (paper, section 4.3; docs/switching.md).

- ``predict``: when to stop the old model, from recorded switches;
- ``engines``: a server's processes: start, stop, and when all of them are gone;
- ``switch``: one switch, a run of its own;
- ``gateway``: one stable address before them (needs aiohttp, the ``gateway`` extra).

Standard library only, but for ``gateway``.
"""
