"""How soon freed blocks are available again."""
