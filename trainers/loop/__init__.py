"""The training loop: `Trainer` takes the steps of a run, and `TrainStep` is what a step does."""
