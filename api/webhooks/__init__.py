"""Webhooks over HTTP: endpoints, secrets, delivery log, replays."""
