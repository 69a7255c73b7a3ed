"""A task's part in checkpoints: aligning barriers, taking snapshots, writing and reading them."""
