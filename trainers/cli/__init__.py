"""The command lines: `trainers`, its commands, and the strategy comparison."""
