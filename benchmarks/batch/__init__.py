"""Batch jobs, TPC-H's q1, q3, q6, q13 and q18 among them, beside Spark alone."""
