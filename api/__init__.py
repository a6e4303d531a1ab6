"""The HTTP service: turns requests into calls of `jobs`, and results into JSON."""
