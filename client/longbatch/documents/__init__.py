"""Documents: where they lie, what is made of them."""
