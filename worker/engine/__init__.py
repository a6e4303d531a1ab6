"""The engine as a worker sees it: the only package that speaks to engines."""
