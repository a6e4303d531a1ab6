"""Measurements on a machine with a GPU, where the transformers engine is a real one."""
