"""The Celery workers: stream results from the engine, maintain the queue and deliver webhooks."""
