"""What encryption of content costs: `python -m bench.sealing`."""
