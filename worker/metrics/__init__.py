"""What a worker process tells Prometheus of itself."""
