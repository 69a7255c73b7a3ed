"""Operators that run on Spark."""
