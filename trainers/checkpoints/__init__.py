"""The output directory of a run: checkpoints, log and lock."""
