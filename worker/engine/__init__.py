"""The engine as a worker finds it: the one package that speaks to Triton."""
