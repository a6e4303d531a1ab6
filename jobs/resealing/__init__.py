"""Resealing: everything that is sealed at rest, sealed anew as the settings say now, and counted by key."""
