"""Documents: their text, extracted in a separate process, and the removal of old ones."""
