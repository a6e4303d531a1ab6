"""What the console's pages cost the database: `python -m bench.console`."""
