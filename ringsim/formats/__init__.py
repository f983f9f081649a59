"""Schedules in other people's formats: GOAL text, written, and MSCCL XML, written and read."""
