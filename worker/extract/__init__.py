"""The text of one document, read in an isolated process with only the standard library and parsers."""
