"""What junk of one tenant costs another."""
