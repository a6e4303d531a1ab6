"""Extractions: what callers do with them; see fields, joining, prompts and views for the rest."""

from jobs.extractions.lifecycle import create, get, list_extractions, remove
