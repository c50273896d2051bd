"""The C chunk library and its binding: see `cfac.native.binding` and native/README.md.

Nothing is loaded when this package is imported.
"""
