"""What a strategy sends, and the time that should take."""
