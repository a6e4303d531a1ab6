"""Equal requests of a tenant run once: the first is the leader, the others are its twins."""
