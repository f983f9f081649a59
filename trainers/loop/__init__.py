"""The training loop: steps, checkpoints, logs, and what happens when something goes wrong."""
