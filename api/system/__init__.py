"""The service about itself: health, metrics, version, documentation."""
