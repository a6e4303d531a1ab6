"""How right the fields are that a small real model extracts; see `__main__`."""
