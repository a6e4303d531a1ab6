"""The servers that a local stack starts, and what each is told."""
