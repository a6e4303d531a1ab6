"""What lives as long as the process: connections, caches and loops that requests share."""
