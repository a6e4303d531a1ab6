"""Jobs over HTTP: submission one by one or in bulk, status, results, events."""
