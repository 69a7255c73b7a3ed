"""A task's part in checkpoints: aligns barriers, and takes, writes and reads snapshots."""
