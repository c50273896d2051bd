"""What runs inside an engine: channel, runs, traces. Standard library only."""
