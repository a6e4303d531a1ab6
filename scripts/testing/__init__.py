"""How the tests run."""
