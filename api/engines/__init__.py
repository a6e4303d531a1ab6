"""Engines over HTTP, for operators: what they hold, pause, drain and resume."""
