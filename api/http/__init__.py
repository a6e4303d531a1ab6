"""HTTP, whatever the route: authentication, bodies, errors, ids, pages and events."""
