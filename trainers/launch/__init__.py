"""Start ranks, and find this process's rank. Importing this loads no torch."""
