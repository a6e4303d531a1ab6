"""A full vLLM at its defaults, without a GPU: how many of its slots a worker fills, and at what CPU cost."""
