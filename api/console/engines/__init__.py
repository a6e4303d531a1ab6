"""The pages of engines."""
