"""Functions that a model may call: what a request says of them, and calls in conversations and answers."""
