"""Real servers under a workload: contenders, gates and meters."""
