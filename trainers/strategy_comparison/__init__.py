"""The strategy comparison: probe, predict, train with every strategy, compare."""
