"""Batches over HTTP: create, follow, retry, estimate."""
