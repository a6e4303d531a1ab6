"""What answers hold besides their text."""
