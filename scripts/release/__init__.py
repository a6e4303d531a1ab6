"""What a release needs: its notes, and the licences of what it ships."""
