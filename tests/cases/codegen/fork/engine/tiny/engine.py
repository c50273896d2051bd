"""What the core imports at its birth."""
