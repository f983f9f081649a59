"""The memory that each strategy needs, predicted. No torch is needed for it."""
