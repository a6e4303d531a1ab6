"""Summaries over HTTP: create, follow, results, estimates."""
