"""The Celery side: streams from the engine into results, and tells webhooks about them."""
