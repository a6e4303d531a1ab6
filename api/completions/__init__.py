"""Answers that a caller waits for: chat and text completions, and the models."""
