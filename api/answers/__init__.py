"""Answers over HTTP: ask documents questions, follow, read, estimate."""
