"""Webhook deliveries: claimed, sent over guarded connections, and recorded."""
