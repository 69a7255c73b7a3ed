"""Aggregation on Arrow columns: grouping of rows, partial results by key, and their merges."""
