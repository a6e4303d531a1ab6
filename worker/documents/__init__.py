"""Documents: their text, extracted in a process of its own, and the removal of old ones."""
