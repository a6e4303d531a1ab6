"""Interactive requests, whose caller waits for the answer: chat and text completions; and the models."""
