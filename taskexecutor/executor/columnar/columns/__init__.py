"""Passes rows to and from Spark plans as Arrow columns, in shared memory."""
