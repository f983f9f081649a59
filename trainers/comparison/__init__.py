"""One process beside several: whether they learn the same, and which is faster."""
