"""Scheduling: candidates, ranking, packing, reservation sizes, and the claim."""
