"""Gradient synchronisation from first principles. Importing this package alone loads no torch."""
