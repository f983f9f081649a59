"""Schedules made from schedules, computed when asked for."""
