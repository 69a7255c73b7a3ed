"""The cost of checkpoints, and the time until a failed job continues from one."""
