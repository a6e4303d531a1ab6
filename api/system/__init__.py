"""Health, metrics, version and documentation of the service."""
