"""The domain: what a job is and how it may change. No web, no broker, no GPU."""
