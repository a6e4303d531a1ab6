"""A drill on several machines: network namespaces that lose packets, part, and disagree on the time."""
