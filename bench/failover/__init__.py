"""The death of the primary database under load, and the standby that takes its place."""
