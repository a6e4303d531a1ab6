"""Summaries of files and folders: sent, followed, and written where they are wanted."""
