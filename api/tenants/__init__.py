"""Tenants over HTTP: what they used and what they may use."""
