"""A task trained with a strategy, from checkpoints if need be: what `python -m trainers` does."""
