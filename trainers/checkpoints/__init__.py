"""The output directory of a run: checkpoints, log and lock; and how a run goes on from there."""
