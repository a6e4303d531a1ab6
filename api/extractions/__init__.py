"""Extractions over HTTP: fill fields from documents, follow, read, estimate."""
