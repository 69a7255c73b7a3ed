"""The contents of checkpoints, and their storage."""
