"""Two engines that give the same times: `by_step` where nothing is shared, and `by_event`."""
