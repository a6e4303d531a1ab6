"""The inference worker: claims jobs, runs them on its engine and records how they ended."""
