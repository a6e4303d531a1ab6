"""Checking answers against the forms that were asked for."""
