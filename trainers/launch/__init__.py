"""Starting ranks, and finding out which rank this process is. Importing this loads no torch."""
