"""Engines: capacity, registry, reservations, and the tokens each tenant was served."""
