"""Batch jobs, including TPC-H's q1, q3, q6, q13 and q18, compared with Spark alone."""
