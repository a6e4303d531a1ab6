"""A restore of a large database to a point in time, by the commands that the docs give operators."""
