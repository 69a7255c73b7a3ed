"""Rows that enter and leave Spark's plans as Arrow's columns, in shared memory."""
