"""Sub-commands that need only the compiler."""
