"""MSCCL's XML: read into a Schedule, and written."""
