"""OpenAI's responses, each of them one job: requests, items, what is kept of them, and their objects."""
