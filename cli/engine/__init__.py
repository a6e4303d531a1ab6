"""What follows from a profile: the plan of an engine, and every file that its deployment needs."""
