"""Files over HTTP: uploads, lists, content."""
