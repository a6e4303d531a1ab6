"""Summaries over HTTP."""
