"""The demo: a stack of its own that summarizes real documents."""
