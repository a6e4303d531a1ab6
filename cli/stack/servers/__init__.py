"""The servers that a local stack starts, and their configuration."""
