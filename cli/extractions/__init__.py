"""Fields from the command line: a schema read, values of every document written as one table."""
