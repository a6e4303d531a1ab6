"""Work on callers' schemas and patterns, in processes that a hostile one may end."""
