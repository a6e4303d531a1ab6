"""What engines have of prompts, and the jobs that begin alike and follow each other."""
