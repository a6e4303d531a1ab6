"""Benchmarks: the product's figures next to a peer or a limit, measured in the same run."""
