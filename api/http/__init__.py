"""HTTP for every route: authentication, bodies, errors, ids, pages and events."""
