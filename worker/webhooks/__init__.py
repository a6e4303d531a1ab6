"""Webhook deliveries: claim them, send them over guarded connections, record the outcomes."""
