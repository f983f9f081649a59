"""What each strategy sends, and the time that should take. No torch is needed for it."""
