"""Load from independent callers, for `longbatch bench`."""
