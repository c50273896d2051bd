"""From a plan and an engine tree to a patch."""
