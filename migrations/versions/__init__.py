"""One file per step; its first lines give the reason."""
