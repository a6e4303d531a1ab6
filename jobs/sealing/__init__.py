"""Content sealed at rest: AES-256-GCM under the keys of the webhooks' vault."""
