"""Benchmarks: what the product reaches, beside a peer or a limit measured in the same run."""
