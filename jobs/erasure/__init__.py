"""Erasure: what takes everything of a tenant out of the stores."""
