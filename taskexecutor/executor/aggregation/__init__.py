"""Aggregation on Arrow's columns: groups of rows, partial results by key, and how they merge."""
