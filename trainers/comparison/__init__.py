"""The strategy comparison: probe, predict, train with every strategy and in one process, compare."""
