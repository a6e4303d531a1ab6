"""Tenants over HTTP: their usage and their quotas."""
