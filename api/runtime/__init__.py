"""The process's runtime: connections, caches and loops that all requests share."""
