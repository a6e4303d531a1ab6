"""Engines that speak HTTP: one file a kind, over one way to stream a request."""
