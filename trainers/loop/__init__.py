"""The training loop: `Trainer` takes all steps of a run, `TrainStep` takes one step."""
