"""The output directory of a run: checkpoints, log, lock, and the resumption of a run."""
