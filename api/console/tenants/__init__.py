"""Pages of tenants: their limits, queues and API keys."""
