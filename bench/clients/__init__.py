"""Well-known load generators against Longbatch's API and against the engine behind it."""
