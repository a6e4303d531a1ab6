"""The console: pages for people over the same rows and verbs as the API, with or without script."""
