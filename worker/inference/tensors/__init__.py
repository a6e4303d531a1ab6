"""Tensors of runs by name: those that come from an engine, and files of those that go to it."""
