"""The import hook: a plan's edits, made while the engine is imported.

``cfac compile --backend hook`` copies these modules into the wheel that it writes (see
``cfac.codegen.hook``), where they must run without cfac: standard library only, and they
import one another relatively.

- ``finder`` is all that an interpreter loads when the hook is on: a meta-path finder that
  knows the names of the edited modules, and asks the others where they are.
- ``edits`` is loaded with the engine: it compares the engine's files with the hashes of
  those that the hook was compiled for, and gives each module its code.  All or none.
- ``relocate`` compiles an edited source so that every line number is the original's.

Off, each of them leaves the engine as it is installed.
"""
