"""The HTTP service: requests in, verbs of `jobs` called, JSON out."""
