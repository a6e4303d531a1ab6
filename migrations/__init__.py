"""The schema's history: expand, backfill, contract."""
