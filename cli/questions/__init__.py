"""Questions from the command line: read, asked of every document, answers written as one table."""
