"""Forecasts: positions in the queue, start times, and durations."""
