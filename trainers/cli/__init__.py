"""The command lines: `trainers`, its commands, and the main job."""
