"""Text out of one document, in a process that knows nothing else: only the standard library and parsers."""
