"""The main job: probe, predict, train with every strategy, compare."""
