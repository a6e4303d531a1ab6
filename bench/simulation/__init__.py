"""Engines, workloads and policies in virtual time, and the limits they are measured against."""
