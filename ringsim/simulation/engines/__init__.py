"""Two engines that give the same times: `step_engine` for rings that share nothing, and `event_engine`."""
