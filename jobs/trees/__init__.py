"""Trees of jobs: how they advance, and how far they are."""
