"""From a startup spec to a checked graph and a plan; the command line."""
