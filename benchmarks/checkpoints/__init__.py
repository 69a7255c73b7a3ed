"""What checkpoints cost, and how soon a job that failed goes on from one."""
