"""History of the schema: expand, backfill, contract."""
