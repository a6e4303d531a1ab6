"""The inference worker: it claims jobs, runs them on its engine, and records how they ended."""
