"""One file per step; each says at its top why it is there."""
