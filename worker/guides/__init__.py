"""Checking answers against the forms that were asked for, in processes that a hostile schema may end."""
